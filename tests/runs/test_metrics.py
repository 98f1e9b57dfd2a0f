"""Metrics: rows survive kills, every skipped line is counted, and no step is lost or doubled by any history of attempts."""

import json
import math
import resource
import signal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opd.runs.metrics import MetricsWriter, merge_attempts, parse_metrics, read_metrics
from opd.store.local import LocalStore

# The same examples every time, and no time limit: the machine may be busy.
SETTINGS = settings(derandomize=True, deadline=None)


class Scalar:
    """A 0-d array as numpy and torch make them."""

    shape = ()

    def __init__(self, value: float):
        self.value = value

    def item(self) -> float:
        return self.value


@pytest.fixture
def writer(tmp_path: Path) -> MetricsWriter:
    return MetricsWriter(tmp_path / "attempts/0001/metrics.jsonl")


def rows_of(data: bytes) -> list[dict]:
    return parse_metrics(data, attempt=1)[0]


def test_a_row_is_one_line_of_json_with_step_and_time(writer: MetricsWriter) -> None:
    writer.log(3, {"opd/loss": Scalar(0.5), "opd/num_tokens": 7, "opd/skipped": False})
    text = writer.path.read_text()
    assert text.count("\n") == 1
    row = json.loads(text)
    assert row.pop("time") > 0
    assert row == {"step": 3, "opd/loss": 0.5, "opd/num_tokens": 7, "opd/skipped": 0}


def test_a_value_that_is_not_finite_is_valid_json_and_comes_back_as_a_float(writer: MetricsWriter) -> None:
    writer.log(1, {"nan": math.nan, "inf": math.inf, "minus": -math.inf, "one": 1.0})
    data = writer.path.read_bytes()
    json.loads(data, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    (row,) = rows_of(data)
    assert math.isnan(row["nan"])
    assert (row["inf"], row["minus"], row["one"]) == (math.inf, -math.inf, 1.0)


def test_values_that_are_no_numbers_are_dropped_and_warned_of_once(
    writer: MetricsWriter, caplog: pytest.LogCaptureFixture
) -> None:
    for step in range(3):
        writer.log(step, {"text": "NaN", "list": [1], "loss": 1.0})
    assert [set(row) - {"time"} for row in rows_of(writer.path.read_bytes())] == [{"step", "loss"}] * 3
    assert len(caplog.records) == 2


@pytest.mark.parametrize(
    ("step", "metrics", "why"),
    [*((step, {}, "global step is an integer") for step in (-1, 1.0, True, "1", None)), (1, {"step": 2}, "'step'")],
)
def test_a_step_that_is_no_count_and_a_reserved_name_are_refused(
    writer: MetricsWriter, step: object, metrics: dict, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        writer.log(step, metrics)  # type: ignore[arg-type]


def test_a_row_after_a_write_that_failed_half_way_starts_on_a_new_line(writer: MetricsWriter) -> None:
    # The limit on a file's size takes the place of a full disk: the write stops in the middle of the line.
    writer.log(1, {"loss": 1.0})
    size = writer.path.stat().st_size
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, limit[1]))
        with pytest.raises(OSError, match=r"metrics row not written: .* too large.*metrics\.jsonl"):
            writer.log(2, {"loss": 2.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, previous)
    writer.log(3, {"loss": 3.0})
    rows, skipped = parse_metrics(writer.path.read_bytes(), attempt=1)
    assert [row["step"] for row in rows] == [1, 3]
    assert "line 2 is corrupt" in skipped


@pytest.mark.parametrize(
    "line",
    [
        b"not json", b"[1, 2]", b'{"loss": 1.0}', b'{"step": "1"}', b'{"step": -1}', b'{"step": true}', b"\xff\xfe",
        b'{"step": 1, "loss": 1.0}{"step": 2}', b"[" * 100_000,
    ],
)  # fmt: skip
def test_a_line_that_is_no_row_is_skipped_counted_and_shown(line: bytes) -> None:
    rows, skipped = parse_metrics(b'{"step": 1}\n' + line + b'\n{"step": 2}\n', attempt=4)
    assert [row["step"] for row in rows] == [1, 2]
    assert skipped.startswith("attempt 4: 2 rows, 1 lines skipped\n  line 2 is corrupt")


@SETTINGS
@given(steps=st.lists(st.integers(0, 50), min_size=1, max_size=8), data=st.data())
def test_a_kill_at_any_byte_loses_at_most_the_line_being_written(steps: list[int], data: st.DataObject) -> None:
    lines = [json.dumps({"step": step, "loss": step / 3, "text": "{"}).encode() for step in steps]
    whole = b"".join(line + b"\n" for line in lines)
    cut = data.draw(st.integers(0, len(whole)))
    rows, skipped = parse_metrics(whole[:cut], attempt=1)
    ends = [sum(len(line) + 1 for line in lines[: number + 1]) - 1 for number in range(len(lines))]
    num_whole = sum(end <= cut for end in ends)  # a row is whole once its last brace is there
    assert [row["step"] for row in rows] == steps[:num_whole]
    tail_is_torn = (0 < num_whole < len(lines) and cut > ends[num_whole - 1] + 1) or (num_whole == 0 and cut > 0)
    assert ("half-written" in skipped, "corrupt" in skipped) == (tail_is_torn, False)


# ---- the merge ----------------------------------------------------------------------------------------------------


def test_a_steps_value_is_its_latest_attempts_and_what_no_later_attempt_logged_stays() -> None:
    attempts = {
        2: [{"step": 2, "val": 2.2}, {"step": 3, "loss": 2.3}, {"step": 3, "loss": 2.4}],  # resumed at step 2
        10: [{"step": 2, "loss": 10.2}],  # resumed at step 1, and killed soon
        1: [{"step": 1, "loss": 1.1}, {"step": 2, "loss": 1.2, "val": 1.2}, {"step": 4, "loss": 1.4}],
    }
    assert merge_attempts(attempts) == [
        {"step": 1, "loss": 1.1}, {"step": 2, "loss": 10.2, "val": 2.2}, {"step": 3, "loss": 2.4}, {"step": 4, "loss": 1.4},
    ]  # fmt: skip


def test_of_two_copies_of_an_attempt_the_longer_one_is_read_and_skipped_lines_are_named(
    tmp_path: Path, local_store: LocalStore, caplog: pytest.LogCaptureFixture
) -> None:
    spool = LocalStore(tmp_path / "spool", policy=local_store.policy)
    local_store.put("attempts/0001/metrics.jsonl", b'{"step": 1}\n')
    spool.put("attempts/0001/metrics.jsonl", b'{"step": 1}\n{"step": 2}\nbroken\n{"st')
    local_store.put("attempts/0002/metrics.jsonl", b'{"step": 3}\n')
    assert [row["step"] for row in read_metrics([local_store, spool])] == [1, 2, 3]
    assert "attempt 1: 2 rows, 2 lines skipped" in caplog.text
    assert "attempt 2" not in caplog.text
