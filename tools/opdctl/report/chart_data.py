"""Packs the curves of all runs for a page's script: thinned to a size that a page may have, as compressed JSON."""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from opdctl.report.panels import Panel, panels_of
from opdctl.report.thinning import Grid, Thinned, grid_of, thin
from opdctl.runs.compare import Group
from opdctl.runs.gather import GatheredRun
from opdctl.runs.history import series

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

    @property
    def is_empty(self) -> bool:
        return not self.packed


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
