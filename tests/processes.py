"""Processes of a test: a program's output, the state of a process, and those that a child of the test left running."""

import contextlib
import subprocess
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
MARK = "OPD_TEST_MARK"


def ended(*command: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Return how a program ended and what it printed; `options` are of `subprocess.run`."""
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **options)


def output(*command: object, fails: type[Exception] = RuntimeError, **options: Any) -> str:
    """Return what a program prints.

    Raises:
        fails: the program ended with another code than 0; the text has the end of its errors.
    """
    done = ended(*command, **options)
    if done.returncode:
        end = (done.stderr or done.stdout).strip()[-2000:]
        raise fails(f"`{' '.join(done.args[:9])}` ended with {done.returncode}: {end}")
    return done.stdout


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
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark:
                found.append(process)
    return found
