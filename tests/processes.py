"""Processes of a test: the state of one, and those that a child of the test left running."""

import contextlib
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]


def is_running(pid: int) -> bool:
    """Return True if the process exists and is no zombie."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def marked(mark: str) -> list[psutil.Process]:
    """Those that run with OPD_TEST_MARK of that value: what a child with it in its environment started, and what those started."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get("OPD_TEST_MARK") == mark:
                found.append(process)
    return found
