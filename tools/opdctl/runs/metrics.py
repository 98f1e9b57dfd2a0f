"""A run's metrics as columns, by the rules of `opd.runs.metrics`."""

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from opd.runs.headline import MAX_STEP
from opd.runs.metrics import merge_attempts, parse_metrics
from opd.text import inert

_NUMBERS = (pa.int64(), pa.float64(), pa.null())


def read_metrics(files: Mapping[int, bytes]) -> tuple[pa.Table, list[str]]:
    """Return one row a step, ascending, and what was skipped of each attempt.

    The table has `step` int64 and every metric float64, with nulls where a step lacks it.

    Args:
        files: each attempt's metrics.jsonl by its number.
    """
    parsed = [_parse(files[attempt], attempt=attempt) for attempt in sorted(files)]
    return _merged([_table([]), *(table for table, _ in parsed)]), [skipped for _, skipped in parsed if skipped]


def _parse(data: bytes, *, attempt: int) -> tuple[pa.Table, str]:
    """Return an attempt's rows in the file's order, and what was skipped.

    Arrow takes a file whose every line is one object of numbers, in a seventh of the time. `parse_metrics` takes others.
    """
    num_rows = data.count(b"\n")
    if data[:1] == b"{" and data[-2:] == b"}\n" and data.count(b"}\n{") == num_rows - 1:
        options = pa_json.ReadOptions(use_threads=False, block_size=len(data))
        with contextlib.suppress(ValueError):  # Arrow's own errors and a name that is no UTF-8
            table = pa_json.read_json(pa.BufferReader(data), read_options=options)
            are_numbers = all(
                field.type in _NUMBERS and field.name == inert(field.name, keep="") for field in table.schema
            )
            steps = pc.min_max(table["step"]) if are_numbers and "step" in table.column_names else None
            if steps and table.num_rows == num_rows and not table["step"].null_count and steps["min"].as_py() >= 0:
                types = [(name, pa.int64() if name == "step" else pa.float64()) for name in table.column_names]
                return table.cast(pa.schema(types)), ""
    rows, skipped = parse_metrics(data, attempt=attempt)
    return _table([row for row in rows if row["step"] <= MAX_STEP]), skipped


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


def _merged(tables: Sequence[pa.Table]) -> pa.Table:
    """Return one row a step; `merge_attempts` merges the steps that have several rows."""
    whole = pa.concat_tables(tables, promote_options="default")
    _, places, counts = np.unique(whole["step"].to_numpy(), return_inverse=True, return_counts=True)
    is_repeated = counts[places] > 1
    rows = [{name: value for name, value in row.items() if value is not None}
            for row in whole.filter(pa.array(is_repeated)).to_pylist()]  # fmt: skip
    parts = [whole.filter(pa.array(~is_repeated)), _table(merge_attempts({0: rows}))]
    return pa.concat_tables(parts, promote_options="default").sort_by("step").combine_chunks()


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
