"""The curves of a report: charts of metrics, thinned where they have too many steps, packed for the page's script."""

import base64
import json
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from opd.runs import headline
from opd.runs.metrics import RESERVED_KEYS
from opdctl.runs.compare import Group
from opdctl.runs.gather import LoadedRun
from opdctl.runs.metrics import logged, series
from opdctl.runs.record import is_validation_accuracy

OTHER = "All other metrics"
# A page has at most so many values; a chart at least so many buckets.
MAX_VALUES, MIN_BUCKETS = 1_200_000, 40
MAX_PLACES = 500  # of an axis; steps between them are interpolated
# Larger values are left out: axes cannot span the range of a float.
MAX_DRAWN = 1e100
TOKENS = ("perf/total_num_tokens", "opd/num_tokens", "actor/num_tokens")
_NO_CHART = {*RESERVED_KEYS, "training/global_step"}


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One chart: the first of `metrics` that a run logged, times `scale`, in `unit`."""

    section: str
    title: str
    unit: str = ""
    metrics: tuple[str, ...]
    scale: float = 1.0


# fmt: off
PANELS = (
    Panel(section="Validation", title="Loss on the given answers", unit="nats", metrics=(headline.VALIDATION_LOSS,)),
    Panel(section="Learning", title="Loss", metrics=headline.LOSS_KEYS),
    Panel(section="Learning", title="Divergence from the teacher", unit="nats", metrics=("opd/divergence",)),
    Panel(section="Learning", title="Policy loss", metrics=("opd/policy_loss",)),
    Panel(section="Learning", title="Entropy of the student", unit="nats", metrics=headline.ENTROPY_KEYS),
    Panel(section="Learning", title="Accuracy of the training answers", unit="%", metrics=headline.ACCURACY_KEYS, scale=100),
    Panel(section="Learning", title="Score of the training answers, mean", metrics=headline.SCORE_KEYS),
    Panel(section="Learning", title="Gradient norm", metrics=headline.GRAD_NORM_KEYS),
    Panel(section="Learning", title="Learning rate", metrics=("opd/lr", "actor/lr")),
    Panel(section="Rollouts", title="Response length, mean", unit="tokens", metrics=("response_length/mean",)),
    Panel(section="Rollouts", title="Responses cut at the limit", unit="%", metrics=("response_length/clip_ratio",), scale=100),
    Panel(section="Rollouts", title="Age of the trained tokens, mean", unit="updates", metrics=("rollout/age_mean",)),
    Panel(section="Rollouts", title="Turns, mean", metrics=("opd/num_turns/mean", "num_turns/mean")),
    Panel(section="Speed and memory", title="Step time", unit="s", metrics=headline.STEP_SECONDS_KEYS),
    Panel(section="Speed and memory", title="Throughput", unit="tokens/s", metrics=headline.THROUGHPUT_KEYS),
    Panel(section="Speed and memory", title="Memory of a rank, highest", unit="GiB", metrics=headline.MEMORY_KEYS),
)
# fmt: on


def panels_of(names: Collection[str]) -> list[Panel]:
    """Return charts for these metrics: validation accuracies, PANELS, then each remaining metric by name."""
    first = [
        Panel(section="Validation", title=_title(name), unit="%", metrics=(name,), scale=100)
        for name in sorted(filter(is_validation_accuracy, names))
    ]
    first += PANELS
    taken = {name for panel in first for name in panel.metrics} | _NO_CHART
    return first + [Panel(section=OTHER, title=name, metrics=(name,)) for name in sorted(names) if name not in taken]


def _title(name: str) -> str:
    *source, _, statistic = name.removeprefix(headline.VALIDATION_PREFIX).split("/")
    return f"{'/'.join(source)} {statistic}"


def thin(grid: np.ndarray, width: int, steps: np.ndarray, values: np.ndarray) -> dict[str, list[float | None]]:
    """Return a curve in buckets of `width` neighbouring steps: their mean, lowest and highest value, None for a gap.

    Args:
        grid: [num_steps], ascending; all steps of the chart.
        steps, values: [num_logged], ascending.
    """
    is_drawn = np.abs(values) <= MAX_DRAWN
    bucket = np.searchsorted(grid, steps[is_drawn]) // width
    starts = np.flatnonzero(np.diff(bucket, prepend=-1))
    columns = {}
    for name, combine in (("y", np.add), ("low", np.minimum), ("high", np.maximum)):
        out = np.full(-(-len(grid) // width), np.nan)
        if len(bucket):
            found = combine.reduceat(values[is_drawn].astype(float), starts)
            out[bucket[starts]] = found / np.diff(np.append(starts, len(bucket))) if name == "y" else found
        columns[name] = [None if np.isnan(value) else float(f"{value:.7g}") for value in out]
    return columns if width > 1 else {"y": columns["y"]}


def axes(table: pa.Table) -> dict[str, list[list[float]]]:
    """Return the hours since the first row, and the tokens read and written, at some steps: [steps, places]."""
    (steps, times), (counted, tokens) = series(table, "time"), logged(table, TOKENS)
    if len(counted):  # none before the first step that counts
        counted, tokens = np.append(counted[0] - 1, counted), np.append(0.0, tokens)
    found = {}
    for name, at, values in (("hours", steps, (times - times[:1]) / 3600), ("tokens", counted, np.cumsum(tokens))):
        kept = np.unique(np.linspace(0, max(len(at) - 1, 0), MAX_PLACES).astype(int))[: len(at)]
        if len(kept) and np.abs(values).max() <= MAX_DRAWN:
            found[name] = [at[kept].tolist(), np.maximum.accumulate(values)[kept].round(6).tolist()]
    return found


def pack(runs: Sequence[LoadedRun], groups: Sequence[Group]) -> str:
    """Return base64 of the zlib-compressed JSON that assets/curves.js reads; empty without any curve.

    Args:
        groups: `runs` by experiment; each group is drawn as its mean and band.
    """
    panels = panels_of(sorted({name for run in runs for name in run.record.latest}))
    grids: dict[Panel, np.ndarray] = {}
    for run in runs:
        table = run.metrics
        for panel in panels:
            steps, _ = logged(table, panel.metrics)
            if len(steps):
                grids[panel] = np.union1d(grids.get(panel, steps), steps)
    buckets = max(MAX_VALUES // (3 * len(runs) * max(len(grids), 1)), MIN_BUCKETS)
    widths = {panel: -(-len(grid) // buckets) for panel, grid in grids.items()}
    charts: dict[Panel, dict[str, Any]] = {
        panel: {
            "title": panel.title, "section": panel.section, "unit": panel.unit, "metric": " or ".join(panel.metrics),
            "shown": panel.section != OTHER, "steps": grids[panel][:: widths[panel]].tolist(), "lines": [],
        }
        for panel in panels
        if panel in grids
    }  # fmt: skip
    for number, run in enumerate(runs):
        table = run.metrics
        for panel, chart in charts.items():
            steps, values = logged(table, panel.metrics)
            if len(steps):
                chart["lines"].append({"run": number, **thin(grids[panel], widths[panel], steps, panel.scale * values)})
    if not charts:
        return ""
    group_of = {record.run_id: place for place, group in enumerate(groups) for record in group.records}
    content = {
        "runs": [
            {"name": run.record.run_id, "group": group_of[run.record.run_id], "axes": axes(run.metrics)} for run in runs
        ],
        "groups": [group.name for group in groups],
        "charts": list(charts.values()),
    }
    return base64.b64encode(zlib.compress(json.dumps(content, separators=(",", ":")).encode(), 6)).decode()
