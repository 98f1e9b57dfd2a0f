"""A run that makes no progress is ended by its supervisor, with the stacks of its processes on the disk."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from opd.cluster import supervise
from opd.runs import progress as progress_module
from opd.runs import stacks
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
    assert limit_after(progress, clock, [30.0, 20.0, 400.0, 20.0]) == pytest.approx(250, abs=60)
    short = Progress()
    short.watch(folder="", floor_s=50.0, factor=10.0)
    assert limit_after(short, clock, [1.0, 2.0]) == 50.0


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


def test_a_stalled_run_is_ended_although_its_stacks_cannot_be_had(monkeypatch, capfd):
    def dump(pids):
        raise PermissionError("of another user's process")

    monkeypatch.setattr(stacks, "dump", dump)
    monkeypatch.setattr(supervise, "STALL_POLL_S", 0.01)
    progress = Progress()
    monkeypatch.setattr(supervise, "PROGRESS", progress)
    run = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        with supervise.stall_watch(run.pid):
            progress.watch(folder="", floor_s=1e-3, factor=1.0)
            progress.enter("rollout", 3)
            assert run.wait(60) == -signal.SIGKILL
    finally:
        run.kill()
    assert "its stacks cannot be had: PermissionError" in capfd.readouterr().err
