"""A run that makes no progress is ended by its supervisor, with the stacks of its processes on the disk."""

import subprocess
import sys

STALLED = """
import sys, time
from opd.cluster.supervise import supervised
from opd.runs import stacks
from opd.runs.progress import PROGRESS

def dump():
    raise PermissionError("of another user's process")

def run():
    PROGRESS.watch(folder="", floor_s=1e-3, factor=1.0)
    PROGRESS.enter("rollout", 3)
    time.sleep(600)

stacks.dump = dump
sys.exit(supervised(run))
"""


def test_a_stalled_run_is_ended_although_its_stacks_cannot_be_had():
    done = subprocess.run([sys.executable, "-c", STALLED], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "no progress for 0 s in rollout at step 3: ending this attempt" in done.stderr
    assert "its stacks cannot be had: PermissionError" in done.stderr
    assert "the run was ended by SIGKILL" in done.stderr
