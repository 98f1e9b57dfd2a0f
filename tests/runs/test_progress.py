"""A phase's limit of silence, and the last note of a driver."""

import time
from types import SimpleNamespace

import pytest

from opd.runs import progress as progress_module
from opd.runs.progress import FIRST_FLOORS, Progress


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        # Not for the threads of others, which read the clock too.
        monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: self.now_s, sleep=time.sleep))


def limit_after(progress: Progress, clock: Clock, silences: list[float]) -> float | None:
    for step, seconds in enumerate(silences):
        progress.enter("update", step)
        clock.now_s += seconds
    progress.enter("update", len(silences))
    return progress.read().limit_s


def test_a_phase_may_be_silent_for_ten_of_its_medians_but_never_less_than_the_floor(monkeypatch):
    clock = Clock(monkeypatch)
    progress = Progress()
    progress.watch(folder="", floor_s=50.0, factor=10.0)
    assert limit_after(progress, clock, []) == FIRST_FLOORS * 50, "a first pass may compile"
    assert limit_after(progress, clock, [30.0, 20.0, 400.0, 20.0]) == pytest.approx(200)
    short = Progress()
    short.watch(folder="", floor_s=1.0, factor=10.0)
    assert limit_after(short, clock, [0.05]) == 1.0
    assert limit_after(short, clock, [90.0, 90.0, *[0.25] * 50]) == pytest.approx(2.5), "of the last 50"
    assert limit_after(short, clock, [0.5] * 26) == pytest.approx(5.0)


def test_silence_is_counted_from_the_last_tick_and_a_rest_has_no_limit(monkeypatch):
    clock = Clock(monkeypatch)
    progress = Progress()
    assert progress.read() is None
    progress.watch(folder="x", floor_s=10.0, factor=2.0)
    progress.enter("rollout", 3)
    clock.now_s += 39
    assert not progress.read().is_stalled
    progress.tick()
    clock.now_s += 39
    standing = progress.read()
    assert (standing.phase, standing.step, standing.folder, standing.is_stalled) == ("rollout", 3, "x", False)
    clock.now_s += 2
    assert progress.read().is_stalled
    progress.rest("pods")
    clock.now_s += 10_000
    assert not progress.read().is_stalled
