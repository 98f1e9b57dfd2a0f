"""Metrics as columns equal the rows that `opd.runs.metrics` parses and merges, whatever the files hold."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opd.runs.metrics import merge_attempts, parse_metrics
from opdctl.runs.history import merge_tables, parse_attempt, series

NUMBERS = st.one_of(st.integers(-(2**40), 2**40), st.floats(allow_nan=False, allow_infinity=False))
ROWS = st.fixed_dictionaries(
    {"step": st.integers(0, 12)},
    optional={"opd/loss": NUMBERS, "val-core/x/acc/mean@1": NUMBERS, "time": NUMBERS},
)
LINES = st.one_of(
    ROWS.map(json.dumps),
    ROWS.map(json.dumps),
    ROWS.map(json.dumps),
    st.sampled_from(["", "{", "null", '{"step": 1}{"step": 2}', '{"step": 1.5}', '{"step": true}', '{"step": -1}',
                     '{"step": 3, "opd/loss": "NaN"}', '{"opd/loss": 1}', '{"step": 4, "opd/loss": 1, "opd/loss": 2}',
                     '{"step": 5,\n"opd/loss": 1}', "\x00", "[1]", '{"step": 6, "a": {"b": 1}}']),
)  # fmt: skip
FILES = st.builds(
    lambda lines, end: ("\n".join(lines) + end).encode(), st.lists(LINES, max_size=8), st.sampled_from(["", "\n"])
)


def as_rows(table) -> list[dict]:
    return [{name: value for name, value in row.items() if value is not None} for row in table.to_pylist()]


def same(left: list[dict], right: list[dict]) -> bool:
    """Equal rows; NaN equals NaN, and what is no number counts as absent, since a column cannot hold it."""

    def plain(row: dict) -> dict:
        numbers = {key: value for key, value in row.items() if isinstance(value, int | float)}
        return {key: "NaN" if isinstance(value, float) and math.isnan(value) else float(value) for key, value in numbers.items()}  # fmt: skip

    return [plain(row) for row in left] == [plain(row) for row in right]


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(FILES, max_size=4))
def test_columns_equal_the_merged_rows_of_the_run_directory(files: list[bytes]) -> None:
    tables, rows = {}, {}
    for attempt, data in enumerate(files, start=1):
        tables[attempt], report = parse_attempt(data, attempt=attempt)
        rows[attempt], expected = parse_metrics(data, attempt=attempt)
        assert report == expected
    assert same(as_rows(merge_tables(tables)), merge_attempts(rows))


def test_a_resumed_attempt_that_only_validates_keeps_the_training_row() -> None:
    first = b'{"step": 2, "opd/loss": 0.5}\n{"step": 1, "opd/loss": 1.0}\n'
    second = b'{"step": 2, "val-core/x/acc/mean@1": 0.75}\n'
    table = merge_tables({2: parse_attempt(second, attempt=2)[0], 1: parse_attempt(first, attempt=1)[0]})
    assert as_rows(table) == [
        {"step": 1, "opd/loss": 1.0},
        {"step": 2, "opd/loss": 0.5, "val-core/x/acc/mean@1": 0.75},
    ]


def test_a_series_holds_only_the_steps_that_logged_it() -> None:
    table, _ = parse_attempt(b'{"step": 0, "a": 1}\n{"step": 1, "b": 2}\n{"step": 2, "a": 3}\n', attempt=1)
    steps, values = series(table, "a")
    assert (steps.tolist(), values.tolist()) == ([0, 2], [1.0, 3.0])
    assert series(table, "absent")[0].size == 0


@pytest.mark.parametrize("value", ["1e-6", "1.0", "1e16", "0.1", "-0.0", "123456789012345678"])
def test_numbers_keep_every_digit_that_a_float_has(value: str) -> None:
    table, _ = parse_attempt(f'{{"step": 1, "a": {value}}}\n'.encode(), attempt=1)
    assert table["a"].to_pylist() == [float(value)]


def test_a_step_that_no_column_can_hold_is_skipped_and_counted() -> None:
    table, report = parse_attempt(b'{"step": 99999999999999999999, "a": 1}\n{"step": 1, "a": 2}\n', attempt=1)
    assert as_rows(table) == [{"step": 1, "a": 2.0}]
    assert (report.num_rows, report.num_corrupt_lines) == (1, 1)
