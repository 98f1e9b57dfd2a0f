"""Metrics as columns."""

from __future__ import annotations

from opdctl.runs.metrics import read_metrics, series


def as_rows(table) -> list[dict]:
    return [{name: value for name, value in row.items() if value is not None} for row in table.to_pylist()]


def test_a_resumed_attempt_that_only_validates_keeps_the_training_row() -> None:
    first = b'{"step": 2, "opd/loss": 0.5}\n{"step": 1, "opd/loss": 1.0}\n'
    second = b'{"step": 2, "val-core/x/acc/mean@1": 0.75}\n'
    assert as_rows(read_metrics({2: second, 1: first})[0]) == [
        {"step": 1, "opd/loss": 1.0},
        {"step": 2, "opd/loss": 0.5, "val-core/x/acc/mean@1": 0.75},
    ]


def test_what_is_no_number_has_no_place_in_a_column_and_an_endless_one_is_infinite() -> None:
    data = b'{"step": 1, "a": true, "b": 1}\n{"step": 2, "a": 2, "b": 1%s}\n{"step": 3, "a": "x", "b": "NaN"}\n' % (
        b"0" * 400
    )
    table, [report] = read_metrics({1: data})
    assert table["a"].to_pylist() == [None, 2.0, None]
    assert table["b"].to_pylist()[:2] == [1.0, float("inf")]
    assert str(table["b"].to_pylist()[2]) == "nan"
    assert report.num_rows == 3


def test_a_series_holds_only_the_steps_that_logged_it() -> None:
    table, _ = read_metrics({1: b'{"step": 0, "a": 1}\n{"step": 1, "b": 2}\n{"step": 2, "a": 3}\n'})
    steps, values = series(table, "a")
    assert (steps.tolist(), values.tolist()) == ([0, 2], [1.0, 3.0])
    assert series(table, "absent")[0].size == 0
