"""A run that makes no progress is ended by its supervisor, with the stacks of its processes on the disk."""

import signal
import subprocess
import sys

from opd.cluster import supervise
from opd.runs import stacks
from opd.runs.progress import Progress


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
