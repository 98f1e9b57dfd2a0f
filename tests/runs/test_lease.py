"""The thread that keeps an attempt's lease outlives whatever a store answers, and a lease that ran out stops the attempt."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opd.errors import LeaseLost, Overtaken, StoreUnavailable
from opd.runs.lease import Watch


class Beats:
    """A beat whose answer the test sets, and a clock that it turns."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.answer: Exception | None = None
        self.num = 0

    def __call__(self) -> None:
        self.num += 1
        if self.answer is not None:
            raise self.answer


@pytest.fixture
def beats() -> Beats:
    return Beats()


@pytest.fixture
def watch(beats: Beats) -> Watch:
    return Watch(beat=beats, interval_s=0.005, term_s=60.0, clock=lambda: beats.now_s)


@pytest.mark.parametrize("odd", [KeyError("LastModified"), ValueError("bad date"), TypeError("no length")])
def test_an_odd_answer_does_not_end_the_thread(
    watch: Watch, beats: Beats, until: Callable, odd: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    beats.answer = odd
    watch.start()
    until(lambda: beats.num > 3)
    beats.answer = None
    beats.now_s = 50.0
    before = beats.num
    until(lambda: beats.num > before + 1)
    beats.now_s = 100.0  # fifty seconds after the last beat that went well
    watch.check()
    watch.stop()
    assert [record.message for record in caplog.records if "lease not renewed" in record.message] == [
        f"lease not renewed, another attempt may take over when it runs out: {odd!r}"
    ]


def test_a_lease_older_than_its_term_stops_the_attempt(watch: Watch, beats: Beats) -> None:
    beats.answer = KeyError("LastModified")
    beats.now_s = 60.0
    watch.check()
    assert beats.num == 0, "a lease within its term is the thread's to renew"
    beats.now_s = 61.0
    with pytest.raises(LeaseLost, match=r"last renewed 61 s ago and its term is 60 s.*LastModified"):
        watch.check()


def test_a_thread_that_stood_still_is_made_up_for_before_anything_is_stopped(watch: Watch, beats: Beats) -> None:
    beats.now_s = 1000.0  # a process that was stopped for a while, and nobody has taken over
    watch.check()
    assert beats.num == 1


def test_who_slept_through_a_take_over_is_told_so_at_once(watch: Watch, beats: Beats) -> None:
    beats.now_s = 1000.0
    beats.answer = Overtaken("by attempt 2")
    with pytest.raises(Overtaken, match="by attempt 2"):
        watch.check()


def test_a_store_that_is_away_stops_nothing_since_nobody_can_claim_the_run_there(watch: Watch, beats: Beats) -> None:
    beats.answer = StoreUnavailable("503")
    for beats.now_s in (61.0, 122.0, 1e6):
        watch.check()


def test_when_the_watch_has_stopped_no_beat_comes_any_more(watch: Watch, beats: Beats, until: Callable) -> None:
    watch.start()
    until(lambda: beats.num > 0)
    watch.stop()
    before, thread = beats.num, watch._thread
    assert thread is not None
    assert not thread.is_alive()
    assert beats.num == before
