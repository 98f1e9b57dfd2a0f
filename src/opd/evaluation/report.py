"""Showing results to people: a table for the terminal and a picture of the curves over k."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from opd.evaluation.estimators import Estimate
from opd.evaluation.results import SetResult, shown_ks

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def result_table(results: Sequence[SetResult]) -> Table:
    """A column for each data set: accuracies in percent with their standard errors, and what did not go well."""
    ks = [k for k in shown_ks(max(result.num_samples for result in results)) if k > 1]
    table = Table("", title="Evaluation", caption="percent ± standard error, clustered by problem")
    for result in results:
        table.add_column(escape(result.data_source), justify="right")
    table.add_row("problems × answers", *(f"{result.num_problems} × {result.num_samples}" for result in results))
    table.add_row("mean@n", *(percent(result.mean) for result in results))
    if any(result.num_dropped for result in results):
        table.add_row("not asked: prompt too long", *(str(result.num_dropped) for result in results))
        table.add_row("mean@n, those as wrong", *(percent(result.mean_of_all) for result in results))
    if ks:
        table.add_row("std@n", *(percent(result.accuracy.std) for result in results))
    at_k: dict[str, list[tuple[Estimate, ...]]] = {
        "pass": [result.pass_at for result in results],
        "maj": [result.majority_at for result in results],
        "worst": [result.accuracy.worst_at for result in results],
    }
    for name, columns in at_k.items():
        for k in ks:
            table.add_row(f"{name}@{k}", *(percent(values[k - 1]) if k <= len(values) else "–" for values in columns))
    if any(result.reward.mean != result.accuracy.mean for result in results):
        table.add_row("reward mean@n", *(plain(result.reward.mean) for result in results))
        table.add_row("reward best@n", *(plain(result.reward.best_at[-1]) for result in results))
        table.add_row("reward worst@n", *(plain(result.reward.worst_at[-1]) for result in results))
    for name in sorted({name for result in results for name in result.numbers}):
        table.add_row(escape(f"{name} mean@n"), *(_number(result, name) for result in results))
    lengths = (result.mean_num_tokens for result in results)
    table.add_row("tokens an answer", *("–" if math.isnan(length) else f"{length:.0f}" for length in lengths))
    for label, count in (
        ("answers missing", "num_missing"),
        ("scorer failed", "num_failed"),
        ("no answer found", "num_unanswered"),
        ("cut at the limit", "num_truncated"),
    ):
        table.add_row(label, *(str(getattr(result, count)) for result in results))
    return table


def percent(estimate: Estimate) -> str:
    """`43.3 ± 7.1`, or the value alone where no error can be given."""
    if math.isnan(estimate.standard_error):
        return f"{100 * estimate.value:.1f}"
    return f"{100 * estimate.value:.1f} ± {100 * estimate.standard_error:.1f}"


def plain(estimate: Estimate) -> str:
    """`0.433 ± 0.071`, or the value alone where no error can be given: for rewards, which need not be shares."""
    error = "" if math.isnan(estimate.standard_error) else f" ± {estimate.standard_error:.3f}"
    return f"{estimate.value:.3f}{error}"


def _number(result: SetResult, name: str) -> str:
    """The mean of a further number, with the answers that it rests on where not all have it."""
    if name not in result.numbers:
        return "–"
    mean, num_answers = result.numbers[name]
    num_asked = result.num_problems * result.num_samples
    return plain(mean) + (f" ({num_answers} of {num_asked})" if num_answers < num_asked else "")


def save_picture(path: Path, results: Sequence[SetResult], *, title: str = "") -> None:
    """A PNG: curves over k, or bars of mean@1 where one answer a problem leaves nothing to draw over k."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.2), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    if max(result.num_samples for result in results) > 1:
        _draw_curves(axes, results)
    else:
        _draw_bars(axes, results)
    axes.set(ylabel="accuracy in %", ylim=(0, 100), title="Evaluation")
    axes.grid(axis="y", alpha=0.25)
    axes.set_axisbelow(True)
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_png(path)


def _draw_curves(axes: "Axes", results: Sequence[SetResult]) -> None:
    """pass@k (solid, with a 95 % band) and maj@k (dashed) over k, one colour a data set."""
    from matplotlib.lines import Line2D

    handles = []
    for number, result in enumerate(results):
        color = f"C{number}"
        ks = range(1, result.num_samples + 1)
        values = [100 * estimate.value for estimate in result.pass_at]
        errors = [_half_band(estimate, result.num_problems) for estimate in result.pass_at]
        axes.plot(ks, values, color=color, marker="o", markersize=3)
        lower = [max(0.0, value - error) for value, error in zip(values, errors, strict=True)]
        upper = [min(100.0, value + error) for value, error in zip(values, errors, strict=True)]
        axes.fill_between(ks, lower, upper, color=color, alpha=0.15, linewidth=0)
        axes.plot(ks, [100 * estimate.value for estimate in result.majority_at], color=color, linestyle="--")
        handles.append(Line2D([], [], color=color, label=_label(result)))
    handles += [
        Line2D([], [], color="0.3", marker="o", markersize=3, label="pass@k, 95 % band"),
        Line2D([], [], color="0.3", linestyle="--", label="maj@k"),
    ]
    ks_shown = shown_ks(max(result.num_samples for result in results))
    axes.set_xscale("log", base=2)
    axes.set_xticks(ks_shown, [str(k) for k in ks_shown])
    axes.minorticks_off()
    axes.set_xlabel("k")
    axes.legend(handles=handles, fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False)


def _draw_bars(axes: "Axes", results: Sequence[SetResult]) -> None:
    """mean@1 of each data set with its 95 % interval."""
    positions = range(len(results))
    values = [100 * result.mean.value for result in results]
    errors = [_half_band(result.mean, result.num_problems) for result in results]
    axes.bar(positions, values, yerr=errors, width=0.5, capsize=4, color=[f"C{number}" for number in positions])
    axes.set_xticks(positions, [_label(result) for result in results])
    axes.set_xlim(-0.75, len(results) - 0.25)


def _half_band(estimate: Estimate, num_problems: int) -> float:
    """Half a 95 % interval in percent; nothing where one problem gives no error, rather than a guess."""
    low, high = estimate.interval(num_problems - 1)
    return 0.0 if math.isnan(low) else 50 * (high - low)


def _label(result: SetResult) -> str:
    return f"{result.data_source} ({result.num_problems} problems)"
