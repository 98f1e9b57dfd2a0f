"""A run's metrics as columns, by the rules of `opd.runs.metrics`."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from opd.runs.headline import MAX_STEP
from opd.runs.metrics import Row, merge_attempts, parse_metrics
from opd.text import inert

_NUMBERS = (pa.int64(), pa.float64(), pa.null())


def read_metrics(files: Mapping[int, bytes]) -> tuple[pa.Table, list[str]]:
    """Return one row a step, ascending, and what was skipped of each attempt.

    The table has `step` int64 and every metric float64, with nulls where a step lacks it.

    Args:
        files: each attempt's metrics.jsonl by its number.
    """
    rows, skipped = dict[int, list[Row]](), list[str]()
    for attempt, data in files.items():
        found, bad = parse_metrics(data, attempt=attempt)
        rows[attempt] = [row for row in found if row["step"] <= MAX_STEP]
        skipped += [bad] if bad else []
    return _table(merge_attempts(rows)), skipped


def _table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    columns = {"step": pa.array([row["step"] for row in rows], type=pa.int64())}
    for name in dict.fromkeys(name for row in rows for name in row):
        if name not in ("step", "run_id"):
            columns[inert(name, keep="")] = pa.array([_number(row.get(name)) for row in rows], type=pa.float64())
    return pa.table(columns)


def _number(value: Any) -> float | None:
    """Return the value as a float; None for what is no number (the trainer writes none)."""
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
