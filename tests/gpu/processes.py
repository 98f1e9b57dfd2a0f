"""Ending a run's launcher, which ends what it has started."""

from __future__ import annotations

import os
import signal
import subprocess

from opd.cluster.supervise import DEFAULT_GRACE_S

END_S = DEFAULT_GRACE_S + 15.0
"""The launcher's own time: its run's grace, and what it then ends hard."""


def end(process: subprocess.Popen[bytes], wait_s: float = END_S) -> None:
    """End a process that ends what it has started, and that leads a group of its own; hard where it takes longer."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(wait_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
