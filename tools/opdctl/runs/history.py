"""Reads a run's metrics as columns: attempts parsed by Arrow and merged by numpy, by the rule of `opd.runs.metrics`.

`opd.runs.metrics.parse_metrics` stays the rule of what a row is. Arrow only takes files in which every line is an object
of plain numbers; any other file (a corrupt line, "NaN") goes through `parse_metrics`, which skips and counts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from opd.runs.headline import MAX_STEP
from opd.runs.metrics import AttemptReport, Row, parse_metrics
from opd.text import storable

# Rows looked at for the columns' names; columns that only come later are inferred by Arrow.
NUM_SAMPLE_LINES = 4


def parse_attempt(data: bytes, *, attempt: int) -> tuple[pa.Table, AttemptReport]:
    """One attempt's file as a table: `step` int64, every metric float64 with nulls where a row lacks it, in file order."""
    whole_lines = data.rfind(b"\n") + 1
    table = _parse_fast(data[:whole_lines])
    if table is None:
        return _within_int64(*parse_metrics(data, attempt=attempt))
    if whole_lines == len(data):
        return table, AttemptReport(attempt=attempt, num_rows=table.num_rows, num_corrupt_lines=0, num_half_lines=0)
    # Blank lines are skipped, so that the cut line keeps its number in the report.
    last, tail = _within_int64(*parse_metrics(b"\n" * table.num_rows + data[whole_lines:], attempt=attempt))
    if last.num_rows:
        table = pa.concat_tables([table, last], promote_options="default")
    return table, AttemptReport(
        attempt=attempt,
        num_rows=table.num_rows,
        num_corrupt_lines=tail.num_corrupt_lines,
        num_half_lines=tail.num_half_lines,
        examples=tail.examples,
    )


def merge_tables(tables: Mapping[int, pa.Table]) -> pa.Table:
    """One row a step, ascending: of every (step, key) the value of the latest attempt, in it of the latest line."""
    ordered = [tables[attempt] for attempt in sorted(tables)]
    if not ordered:
        return _from_rows([])
    table = pa.concat_tables(ordered, promote_options="default").combine_chunks()
    steps, slots = np.unique(table["step"].to_numpy(), return_inverse=True)
    if len(steps) == table.num_rows and np.array_equal(slots, np.arange(len(steps))):
        return table
    columns = [pa.array(steps)]
    names = [name for name in table.column_names if name != "step"]
    # Of repeated indices numpy keeps the last one, which is the latest line of the latest attempt.
    for name in names:
        column = table[name].combine_chunks()
        if not column.null_count:  # logged in every line, as most metrics are
            values = np.zeros(len(steps))
            values[slots] = column.to_numpy()
            columns.append(pa.array(values))
            continue
        is_set = column.is_valid().to_numpy(zero_copy_only=False)
        values, is_missing = np.zeros(len(steps)), np.ones(len(steps), dtype=bool)
        values[slots[is_set]] = column.fill_null(0.0).to_numpy(zero_copy_only=False)[is_set]
        is_missing[slots[is_set]] = False
        columns.append(pa.array(values, mask=is_missing))
    return pa.table(columns, names=["step", *names])


def series(table: pa.Table, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values of one metric where it was logged, `[num_logged]` each; empty for a metric the run lacks."""
    if name not in table.column_names:
        return np.empty(0, dtype=np.int64), np.empty(0)
    if not table[name].null_count:  # logged in every line, as most metrics are
        return table["step"].to_numpy(), table[name].to_numpy()
    kept = table.select(["step", name]).filter(pc.is_valid(table[name]))
    return kept["step"].to_numpy(), kept[name].to_numpy()


def _parse_fast(data: bytes) -> pa.Table | None:
    """The table, or None for what only the strict reader may judge."""
    if not data:
        return _from_rows([])
    # Every line one object: Arrow itself would also take two objects on a line, or one on two lines.
    num_lines = data.count(b"\n")
    if not data.startswith(b"{") or not data.endswith(b"}\n") or data.count(b"}\n{") != num_lines - 1:
        return None
    names = _first_names(data)
    if names is None:
        return None
    try:
        table = pa_json.read_json(
            pa.BufferReader(data),
            read_options=pa_json.ReadOptions(use_threads=False, block_size=len(data)),
            parse_options=pa_json.ParseOptions(
                explicit_schema=pa.schema([(name, pa.int64() if name == "step" else pa.float64()) for name in names])
            ),
        )
        if table.num_rows != num_lines or any(_is_foreign(field) for field in table.schema):
            return None
        steps = table["step"]
        if steps.null_count or (len(steps) and pc.min(steps).as_py() < 0):
            return None
        schema = pa.schema([(name, pa.int64() if name == "step" else pa.float64()) for name in table.column_names])
        return table.cast(schema)
    except (pa.ArrowException, ValueError):  # ValueError: a name that is no UTF-8
        return None


def _first_names(data: bytes) -> list[str] | None:
    names: dict[str, None] = {"step": None}
    for line in data[: 2**20].split(b"\n", NUM_SAMPLE_LINES)[:NUM_SAMPLE_LINES]:
        try:
            row = json.loads(line or b"{}")
        except (ValueError, RecursionError):
            return None
        names |= dict.fromkeys(row)
    return list(names)


def _is_foreign(field: pa.Field) -> bool:
    return not (pa.types.is_int64(field.type) or pa.types.is_float64(field.type))


def _within_int64(rows: Sequence[Row], report: AttemptReport) -> tuple[pa.Table, AttemptReport]:
    """The rows as a table; a step that no column can hold is corrupt too."""
    kept = [row for row in rows if row["step"] <= MAX_STEP]
    if len(kept) == len(rows):
        return _from_rows(rows), report
    num_corrupt = report.num_corrupt_lines + len(rows) - len(kept)
    examples = (*report.examples, f"step beyond {MAX_STEP}")
    return _from_rows(kept), replace(report, num_rows=len(kept), num_corrupt_lines=num_corrupt, examples=examples)


def _from_rows(rows: Sequence[Row]) -> pa.Table:
    """Columns of parsed rows; what is no number has no place in them (the trainer writes none)."""
    rows = [{storable(name): value for name, value in row.items()} for row in rows]
    names = list(dict.fromkeys(name for row in rows for name in row if name != "step"))
    columns: list[Any] = [pa.array([row["step"] for row in rows], type=pa.int64())]
    for name in names:
        columns.append(pa.array([_number(row.get(name)) for row in rows], type=pa.float64()))
    return pa.table(columns, names=["step", *names])


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer beyond any float
        return math.inf if value > 0 else -math.inf
