"""A run's metrics as columns; `opd.runs.metrics` parses and merges the rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from opd.runs.headline import MAX_STEP
from opd.runs.metrics import merge_attempts, parse_metrics
from opd.text import inert


def read_metrics(files: Mapping[int, bytes]) -> tuple[pa.Table, list[str]]:
    """Return one row a step, ascending, and what was skipped of each attempt.

    The table has `step` int64 and every metric float64, with nulls where a step lacks it.

    Args:
        files: each attempt's metrics.jsonl by its number.
    """
    parsed = {attempt: parse_metrics(data, attempt=attempt) for attempt, data in files.items()}
    rows = {attempt: [row for row in found if row["step"] <= MAX_STEP] for attempt, (found, _) in parsed.items()}
    return _table(merge_attempts(rows)), [skipped for _, skipped in parsed.values() if skipped]


def _table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    columns = {"step": pa.array([row["step"] for row in rows], type=pa.int64())}
    for name in dict.fromkeys(name for row in rows for name in row):
        if name not in ("step", "run_id"):
            columns[inert(name, keep="")] = _column([row.get(name) for row in rows])
    return pa.table(columns)


def _column(values: list[Any]) -> pa.Array:
    """Return the values as float64; what is no number has no place in it (the trainer writes none)."""
    try:
        return pa.array(values, type=pa.float64())
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return pa.array(map(_number, values), type=pa.float64())


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer beyond any float
        return math.inf if value > 0 else -math.inf


def series(table: pa.Table, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return steps and values of one metric where it was logged, `[num_logged]` each; empty for a metric the run lacks."""
    if name not in table.column_names:
        return np.empty(0, dtype=np.int64), np.empty(0)
    if not table[name].null_count:  # logged in every line, as most metrics are
        return table["step"].to_numpy(), table[name].to_numpy()
    kept = table.select(["step", name]).filter(pc.is_valid(table[name]))
    return kept["step"].to_numpy(), kept[name].to_numpy()


def logged(table: pa.Table, names: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return steps and values of the first of the metrics that the run logged."""
    return next((both for name in names if len((both := series(table, name))[0])), series(table, ""))
