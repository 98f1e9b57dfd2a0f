"""A call on a thread of its own tells how it ended."""

from __future__ import annotations

import threading

import pytest

from opd.worker.background import Job


def test_its_answer_is_there_once_it_has_ended():
    may_end = threading.Event()

    def call() -> int:
        may_end.wait()
        return 7

    job = Job(call, name="job")
    assert not job.has_ended()
    assert not job.wait(0.0)
    may_end.set()
    assert job.result() == 7
    assert job.has_ended()


def test_its_error_is_raised_where_the_answer_is_asked_for():
    def call() -> None:
        raise OSError("no room")

    job = Job(call, name="job")
    for _ in range(2):
        with pytest.raises(OSError, match="no room"):
            job.result()
