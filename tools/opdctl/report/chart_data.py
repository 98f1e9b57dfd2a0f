"""The curves of a report: panels of metrics, thinned where there are too many values, packed for the page."""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from opd.runs.headline import (
    ACCURACY_KEYS,
    ENTROPY_KEYS,
    GRAD_NORM_KEYS,
    LOSS_KEYS,
    MEMORY_KEYS,
    SCORE_KEYS,
    STEP_SECONDS_KEYS,
    THROUGHPUT_KEYS,
    VALIDATION_LOSS,
)
from opd.runs.metrics import RESERVED_KEYS
from opdctl.runs.compare import Group
from opdctl.runs.gather import GatheredRun
from opdctl.runs.history import series

VALIDATION = "Validation"
OTHER = "All other metrics"


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One chart: the first of `metrics` that a run logged, times `scale`, in `unit`."""

    section: str
    title: str
    unit: str = ""
    metrics: tuple[str, ...]
    scale: float = 1.0

    @property
    def is_shown(self) -> bool:
        """Whether a page opens with it; the others are chosen from a list."""
        return self.section != OTHER


# fmt: off
PANELS = (
    Panel(section=VALIDATION, title="Loss on the given answers", unit="nats", metrics=(VALIDATION_LOSS,)),
    Panel(section="Learning", title="Loss", metrics=LOSS_KEYS),
    Panel(section="Learning", title="Divergence from the teacher", unit="nats", metrics=("opd/divergence",)),
    Panel(section="Learning", title="Policy loss", metrics=("opd/policy_loss",)),
    Panel(section="Learning", title="Weight of the divergence in the loss", metrics=("opd/divergence_weight",)),
    Panel(section="Learning", title="Weight of the policy loss", metrics=("opd/policy_weight",)),
    Panel(section="Learning", title="Answers as good as their prompt's mean", unit="%", metrics=("opd/advantage_zero",), scale=100),
    Panel(section="Learning", title="Entropy of the student", unit="nats", metrics=ENTROPY_KEYS),
    Panel(section="Learning", title="Accuracy of the training answers", unit="%", metrics=ACCURACY_KEYS, scale=100),
    Panel(section="Learning", title="Score of the training answers, mean", metrics=SCORE_KEYS),
    Panel(section="Learning", title="Gradient norm", metrics=GRAD_NORM_KEYS),
    Panel(section="Learning", title="Learning rate", metrics=("opd/lr", "actor/lr")),
    Panel(section="Rollouts", title="Response length, mean", unit="tokens", metrics=("response_length/mean",)),
    Panel(section="Rollouts", title="Responses cut at the limit", unit="%", metrics=("response_length/clip_ratio",), scale=100),
    Panel(section="Rollouts", title="Age of the trained tokens, mean", unit="updates", metrics=("rollout/age_mean",)),
    Panel(section="Rollouts", title="Responses carried over an update", unit="%", metrics=("rollout/carried_share",), scale=100),
    Panel(section="Rollouts", title="Turns, mean", metrics=("opd/num_turns/mean", "num_turns/mean")),
    Panel(section="Speed and memory", title="Step time", unit="s", metrics=STEP_SECONDS_KEYS),
    Panel(section="Speed and memory", title="Throughput", unit="tokens/s", metrics=THROUGHPUT_KEYS),
    Panel(section="Speed and memory", title="GPU memory, highest", unit="GiB", metrics=MEMORY_KEYS),
)
# fmt: on
# Of every row, and no measurement.
_NO_CHART = {*RESERVED_KEYS, "training/global_step"}


def panels_of(names: Collection[str]) -> list[Panel]:
    """Charts for metrics of these names: validation accuracies, PANELS, then each remaining metric by name."""
    core = sorted(name for name in names if _is_validation(name))
    first = [*map(_validation, core), *PANELS]
    taken = {name for panel in first for name in panel.metrics} | _NO_CHART
    return first + [Panel(section=OTHER, title=name, metrics=(name,)) for name in sorted(names) if name not in taken]


def _is_validation(name: str) -> bool:
    return name.startswith("val-core/") and "/acc/mean@" in name and not name.endswith("/stderr")


def _validation(name: str) -> Panel:
    *source, _, statistic = name.split("/")[1:]
    title = f"{'/'.join(source)} {statistic}"
    return Panel(section=VALIDATION, title=title, unit="%", metrics=(name,), scale=100)


MAX_DRAWN = 1e100
"""Axes cannot reach over what a float can just hold."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Steps of one chart over all of its runs, cut into buckets of `width` neighbours (the last one of what is left)."""

    steps: np.ndarray
    """[num_steps] int, ascending."""
    width: int

    @property
    def firsts(self) -> np.ndarray:
        """[num_buckets] the first step of each."""
        return self.steps[:: self.width]

    @property
    def lasts(self) -> np.ndarray:
        """[num_buckets] the last step of each."""
        last_of = np.minimum(np.arange(1, len(self.firsts) + 1) * self.width, len(self.steps)) - 1
        lasts: np.ndarray = self.steps[last_of]
        return lasts


@dataclass(frozen=True, kw_only=True)
class Thinned:
    """One run's curve on a grid, [num_buckets] each, nan where it has nothing.

    `first` and `second` are the lowest and the highest value of a bucket, in the order in which they came.
    """

    mean: np.ndarray
    first: np.ndarray
    second: np.ndarray


def grid_of(steps: np.ndarray, *, max_buckets: int) -> Grid:
    """The finest grid of at most `max_buckets`."""
    return Grid(steps=steps, width=max(-(-len(steps) // max_buckets), 1))


def thin(grid: Grid, steps: np.ndarray, values: np.ndarray) -> Thinned:
    """A curve on the grid; values that cannot be drawn are left out.

    Args:
        steps, values: [num_logged], ascending; every step is one of the grid's.
    """
    out = Thinned(**{name: np.full(len(grid.firsts), np.nan) for name in ("mean", "first", "second")})
    is_drawn = np.abs(values) <= MAX_DRAWN
    steps, values = steps[is_drawn], values[is_drawn].astype(float)
    if not len(values):
        return out
    bucket = np.searchsorted(grid.steps, steps) // grid.width
    starts = np.flatnonzero(np.diff(bucket, prepend=-1))
    sizes = np.diff(np.append(starts, len(values)))
    low, high = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
    place = np.arange(len(values))
    end = len(values)
    low_at, high_at = (
        np.minimum.reduceat(np.where(values == np.repeat(extreme, sizes), place, end), starts)
        for extreme in (low, high)
    )
    filled = bucket[starts]
    out.mean[filled] = np.add.reduceat(values, starts) / sizes
    out.first[filled] = np.where(low_at <= high_at, low, high)
    out.second[filled] = np.where(low_at <= high_at, high, low)
    return out


MAX_VALUES = 1_200_000
"""Of a page, about three bytes each; below it every logged value is there."""
MIN_BUCKETS = 40
"""Of a chart. Where metrics that no page opens with would get fewer, they are left out."""
SHARE_SHOWN = 0.75
"""Of MAX_VALUES, for the charts that a page opens with."""
SIGNIFICANT = 4
VALUES_A_BUCKET = 3


@dataclass(frozen=True, kw_only=True)
class ChartData:
    """What the page needs of its curves."""

    packed: str
    """Base64 of the zlib-compressed JSON that assets/curves.js reads."""
    num_left_out: int
    """Metrics without a chart, since the page would get too large."""
    is_thinned: bool


def chart_data(runs: Sequence[GatheredRun], groups: Sequence[Group]) -> ChartData:
    """Every metric of the runs; read twice, so that one run's table is held at a time.

    Args:
        groups: `runs` by experiment; those of a group are drawn as their mean and band.
    """
    steps, lengths = _steps_of_panels(runs)
    widths = _max_buckets(steps, lengths)
    grids = {panel: grid_of(steps[panel], max_buckets=widths[panel]) for panel in steps if widths[panel]}
    lines: dict[Panel, list[str]] = {panel: [] for panel in grids}
    for number, run in enumerate(runs):
        table = run.metrics()
        for panel, grid in grids.items():
            logged = _logged(panel, table)
            if logged is not None:
                thinned = thin(grid, logged[0], panel.scale * logged[1])
                lines[panel].append(_line(number, thinned, grid))
    if not grids:
        return ChartData(packed="", num_left_out=0, is_thinned=False)
    group_of = {record.run_id: place for place, group in enumerate(groups) for record in group.records}
    head = json.dumps({
        "runs": [{"name": run.record.run_id, "group": group_of[run.record.run_id]} for run in runs],
        "groups": [group.name for group in groups],
    })  # fmt: skip
    charts = ",".join(_chart(panel, grid, lines[panel]) for panel, grid in grids.items())
    content = f'{head[:-1]},"charts":[{charts}]}}'.encode()
    return ChartData(
        packed=base64.b64encode(zlib.compress(content, 6)).decode(),
        num_left_out=len(steps) - len(grids),
        is_thinned=any(grid.width > 1 for grid in grids.values()),
    )


def _steps_of_panels(runs: Sequence[GatheredRun]) -> tuple[dict[Panel, np.ndarray], Mapping[Panel, int]]:
    """Of each chart that has anything: all steps over the runs, ascending, and how many values are logged."""
    names = sorted({name for run in runs for name in run.record.latest})
    steps: dict[Panel, np.ndarray] = {}
    lengths: defaultdict[Panel, int] = defaultdict(int)
    panels = panels_of(names)
    for run in runs:
        table = run.metrics()
        for panel in panels:
            logged = _logged(panel, table)
            if logged is None:
                continue
            known = steps.get(panel)
            if known is None or not np.array_equal(known, logged[0]):
                steps[panel] = logged[0] if known is None else np.union1d(known, logged[0])
            lengths[panel] += len(logged[0])
    return {panel: steps[panel] for panel in panels if panel in steps}, lengths


def _logged(panel: Panel, table: pa.Table) -> tuple[np.ndarray, np.ndarray] | None:
    return next((both for name in panel.metrics if len((both := series(table, name))[0])), None)


def _max_buckets(steps: Mapping[Panel, np.ndarray], lengths: Mapping[Panel, int]) -> dict[Panel, int]:
    """How many buckets each chart may have; 0: no place for it."""
    if sum(lengths.values()) <= MAX_VALUES:
        return {panel: len(found) for panel, found in steps.items()}
    out: dict[Panel, int] = {}
    for is_shown, share in ((True, SHARE_SHOWN), (False, 1 - SHARE_SHOWN)):
        panels = [panel for panel in steps if panel.is_shown is is_shown]
        num_lines = sum(math.ceil(lengths[panel] / len(steps[panel])) for panel in panels)
        buckets = int(share * MAX_VALUES / VALUES_A_BUCKET / max(num_lines, 1))
        if buckets < MIN_BUCKETS:
            buckets = MIN_BUCKETS if is_shown else 0
        out |= dict.fromkeys(panels, buckets)
    return out


def _chart(panel: Panel, grid: Grid, lines: Iterable[str]) -> str:
    facts: dict[str, Any] = {
        "title": panel.title, "section": panel.section, "unit": panel.unit, "shown": panel.is_shown,
        "metric": " or ".join(panel.metrics), "width": grid.width, "from": grid.firsts.tolist(),
    }  # fmt: skip
    if grid.width > 1:
        facts["to"] = grid.lasts.tolist()
    return f'{json.dumps(facts)[:-1]},"lines":[{",".join(lines)}]}}'


def _line(run: int, thinned: Thinned, grid: Grid) -> str:
    columns = {"m": thinned.mean} | ({"a": thinned.first, "b": thinned.second} if grid.width > 1 else {})
    return f'{{"run":{run},' + ",".join(f'"{name}":{_numbers(found)}' for name, found in columns.items()) + "}"


def _numbers(values: np.ndarray) -> str:
    """A JSON list with as many digits as tell a ten-thousandth of the values' range apart."""
    finite = values[np.isfinite(values)]
    digits = SIGNIFICANT
    if len(finite):
        largest, spread = float(np.abs(finite).max()), float(np.ptp(finite))
        if 0 < spread < largest:
            digits += min(math.ceil(math.log10(largest / spread)), 9)
        elif spread == 0:
            digits = 9
    # One formatting of all: a page has a million of them.
    shown = ",".join([f"%.{digits}g"] * len(values)) % tuple(values.tolist())
    return f"[{shown.replace('nan', 'null')}]"
