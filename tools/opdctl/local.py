"""Starts the trainer's launcher as a child of the tool: passes signals on and returns its exit code."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from opdctl.console import fail
from opdctl.errors import EXIT_FAILURE

# What a stopped run has to save; the launcher's own grace is shorter.
STOP_GRACE_S = 120.0


def trainer_is_installed() -> bool:
    """Whether the train extra is there, without importing any of it."""
    return importlib.util.find_spec("verl") is not None


def launch(experiment: Path, words: Sequence[str], *, timeout_s: float | None) -> int:
    """Runs `python -m opd.launch` to its end; SIGTERM and a time-out are passed on as SIGTERM.

    Returns:
        Its exit code; 1 after a time-out.
    """
    child = subprocess.Popen([sys.executable, "-m", "opd.launch", str(experiment), *words])

    def pass_on(signum: int, frame: FrameType | None) -> None:
        child.send_signal(signum)

    previous = {signum: signal.signal(signum, pass_on) for signum in (signal.SIGTERM, signal.SIGHUP)}
    # Ctrl-C reaches the child by itself, since both are in the terminal's foreground group.
    previous[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        fail(
            f"the run took longer than {timeout_s:g} s: stopping it", fix="start it again to resume, or raise --timeout"
        )
        child.terminate()
        child.wait(STOP_GRACE_S)
        return EXIT_FAILURE
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
