"""Processes that a test looks at: whether one still runs, and those that a child of the test left running."""

import contextlib

import psutil

from opd.runs.process import process_start


def is_running(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    return bool(process_start(pid))


def marked(mark: str) -> list[psutil.Process]:
    """Those that run with OPD_TEST_MARK of that value: what a child with it in its environment started, and what those started."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get("OPD_TEST_MARK") == mark:
                found.append(process)
    return found


def end_marked(mark: str) -> None:
    """Kill them all, also those of other process groups than the child's, as Ray's workers are, and those that a dead child left."""
    while found := marked(mark):
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(found, timeout=5)
