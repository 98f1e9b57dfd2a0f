"""Parts of a start add up to it, and only the first step is told of them."""

from types import SimpleNamespace

from opd.runs import start_times
from opd.runs.start_times import StartTimes, as_metrics, table


def test_the_parts_of_a_start_add_up_and_are_told_once(monkeypatch):
    now = iter([10.0, 12.0, 13.0, 17.5])
    monkeypatch.setattr(start_times, "time", SimpleNamespace(monotonic=lambda: next(now)))  # not for other threads
    start = StartTimes()
    start.mark("imports")
    start.mark("Ray")
    start.mark("imports")  # a second stretch of the same part
    parts = start.take()
    assert parts == {"imports": 6.5, "Ray": 1.0, "all": 7.5}
    start.mark("a later step")
    assert start.take() == {}


def test_a_part_is_a_metric_and_a_line():
    parts = {"worker processes": 12.25}
    assert as_metrics(parts) == {"timing_start/worker_processes_s": 12.25}
    assert table(parts) == ["start: worker processes            12.2 s"]
