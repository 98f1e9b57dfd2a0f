"""The lease thread: it survives any answer of a store, and a lease that is too old stops the attempt."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opd.errors import LeaseLost, Overtaken, StoreRefused, StoreUnavailable
from opd.runs.attempts import Watch


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


@pytest.mark.parametrize("refused", [KeyError("LastModified"), StoreRefused("403")])
def test_a_lease_that_the_store_refuses_to_renew_for_its_term_stops_the_attempt(
    watch: Watch, beats: Beats, refused: Exception
) -> None:
    beats.answer = refused
    beats.now_s = 60.0
    watch.check()
    assert beats.num == 0, "a lease within its term is the thread's to renew"
    beats.now_s = 61.0
    with pytest.raises(LeaseLost, match=r"last renewed 61 s ago and 60 s are allowed"):
        watch.check()


def test_an_attempt_that_can_save_is_asked_to_end_once_and_stopped_at_its_second_step_after_that(beats: Beats) -> None:
    asked: list[float] = []
    watch = Watch(
        beat=beats, interval_s=1.0, term_s=60.0, end=lambda: asked.append(beats.now_s), clock=lambda: beats.now_s
    )
    beats.answer = StoreRefused("403")
    for beats.now_s in (30.0, 61.0):
        watch.check()
    assert asked == [61.0]
    with pytest.raises(LeaseLost):
        watch.check()
    assert asked == [61.0]


def test_a_thread_that_stood_still_is_made_up_for_before_anything_is_stopped(watch: Watch, beats: Beats) -> None:
    beats.now_s = 1000.0  # the process was stopped for a while, and no other attempt has taken over
    watch.check()
    assert beats.num == 1


def test_who_slept_through_a_take_over_learns_it_at_once(watch: Watch, beats: Beats) -> None:
    beats.now_s = 1000.0
    beats.answer = Overtaken("by attempt 2")
    with pytest.raises(Overtaken, match="by attempt 2"):
        watch.check()


def test_an_unreachable_store_stops_the_attempt_after_half_an_hour_only(watch: Watch, beats: Beats) -> None:
    beats.answer = StoreUnavailable("503")
    for beats.now_s in (61.0, 122.0, 1800.0):
        watch.check()
    beats.now_s = 1861.0
    with pytest.raises(LeaseLost, match=r"1800 s are allowed.*503"):
        watch.check()


def test_when_the_watch_has_stopped_no_beat_comes_any_more(watch: Watch, beats: Beats, until: Callable) -> None:
    watch.start()
    until(lambda: beats.num > 0)
    watch.stop()
    before, thread = beats.num, watch._thread
    assert thread is not None
    assert not thread.is_alive()
    assert beats.num == before
