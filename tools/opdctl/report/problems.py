"""Draws the pass rates of a run's prompts as a histogram, and the weights that a distillation gave them."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from opd.evaluation.pass_rates import PASS_RATES_KEY, WEIGHT, WEIGHTS_FOLDER
from opd.store.base import Store
from opdctl.console import note
from opdctl.report.density import Curve, as_curve
from opdctl.runs.gather import GatheredRun

MAX_BARS = 21
"""Of one answer more or less a bar, up to so many; more answers a prompt share bars of a twentieth."""


def draw_problems(runs: Sequence[GatheredRun], stores: Mapping[str, Store]) -> dict[str, list[Curve]]:
    """By run id, the pictures of each run that has pass rates: those that it measured, or first and last weighed by.

    What cannot be read is warned of and left out.
    """
    found: dict[str, list[Curve]] = {}
    for run in runs:
        try:
            if pictures := _pictures(run, stores[run.record.url]):
                found[run.record.run_id] = pictures
        except (ArithmeticError, LookupError, TypeError, ValueError, pa.ArrowException) as error:
            note(f"warning: {run.record.run_id}: its pass rates are left out: {' '.join(str(error).split())}")
    return found


def _pictures(run: GatheredRun, store: Store) -> list[Curve]:
    if WEIGHTS_FOLDER in run.folders:
        keys = sorted(info.key for info in store.list(WEIGHTS_FOLDER))
        steps = {key: int(key.rpartition("-")[2].partition(".")[0]) for key in (*keys[:1], *keys[-1:])}
        titles = {key: "Pass rates and weights" + (f" from step {step} on" if step > 1 else "") for key, step in steps.items()}  # fmt: skip
        return [draw(title, _table(store.get(key), (WEIGHT,))) for key, title in titles.items()]
    if PASS_RATES_KEY.partition("/")[0] in run.folders and store.exists(PASS_RATES_KEY):
        return [draw("Pass rates", _table(store.get(PASS_RATES_KEY)))]
    return []


def _table(content: bytes, more: Sequence[str] = ()) -> pa.Table:
    table = pq.read_table(io.BytesIO(content), columns=["pass_rate", "k", "checkpoint", *more])
    rates = table["pass_rate"].to_numpy()
    if not len(rates) or not ((rates >= 0) & (rates <= 1)).all():
        raise ValueError("a file without a prompt, or with a pass rate that is none")
    return table


def draw(title: str, table: pa.Table) -> Curve:
    """The histogram of `pass_rate`; with a column `weight` also the mean weight in each bar."""
    rates, k = (table[name].to_numpy().astype(float) for name in ("pass_rate", "k"))
    counts, middles, bars = histogram(rates, int(k.max()))
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(4.6, 3.1), layout="constrained")
    axes = figure.add_subplot()
    apart = middles[1] - middles[0]
    axes.bar(middles, counts, width=0.9 * apart, color="C0", alpha=0.7)
    axes.set(xlabel="pass rate", ylabel="prompts", xlim=(-0.55 * apart, 1 + 0.55 * apart))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top"]].set_visible(False)
    remarks = [
        f"{len(rates):,} prompts, mean pass rate {100 * rates.mean():.1f} %, {_answers(k)} each by {_models(table)}"
    ]
    if WEIGHT in table.column_names:
        weights = table[WEIGHT].to_numpy().astype(float)
        _draw_weights(axes, middles, np.bincount(bars, weights, len(counts)) / np.maximum(counts, 1), counts)
        remarks.append(f"{100 * np.mean(weights == 0):.1f} % of the prompts weigh nothing, the largest weight is {weights.max():.3g}")  # fmt: skip
    else:
        axes.spines[["right"]].set_visible(False)
        never, always = (100 * np.mean(rates == end) for end in (0.0, 1.0))
        remarks.append(f"never solved: {never:.1f} %, always: {always:.1f} %")
    return as_curve(title, figure, "; ".join(remarks))


def histogram(rates: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Prompts a bar, the bars' middles, and each prompt's bar: a bar is one number of right answers of `k`, as far as they
    can be told apart."""
    num = min(k + 1, MAX_BARS)
    bars = np.floor(rates * (num - 1) + 0.5).astype(int)  # halves go up: np.rint's would leave every other bar short
    return np.bincount(bars, minlength=num), np.linspace(0.0, 1.0, num), bars


def _draw_weights(axes: Any, middles: np.ndarray, means: np.ndarray, counts: np.ndarray) -> None:
    """The mean weight of each bar that has prompts, on an axis of its own."""
    right = axes.twinx()
    right.plot(middles[counts > 0], means[counts > 0], color="C1", marker="o", markersize=3, linewidth=1.4)
    right.set_ylim(bottom=0.0)
    right.set_ylabel("weight", color="C1")
    right.spines[["top"]].set_visible(False)


def _answers(k: np.ndarray) -> str:
    low, high = int(k.min()), int(k.max())
    return f"{low} answers" if low == high else f"{low} to {high} answers"


def _models(table: pa.Table) -> str:
    names = table["checkpoint"].unique().to_pylist()
    return names[0] if len(names) == 1 else f"{len(names)} models"
