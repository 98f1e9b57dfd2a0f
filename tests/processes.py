"""Processes of a test: the state of one, and those that a child of the test left running."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

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


@contextlib.contextmanager
def marked_program(
    mark: str, module: str, *arguments: str, environment: Mapping[str, str], **pipes: Any
) -> Iterator[subprocess.Popen[str]]:
    """Run `python -m module` with this process's import path and a pipe for its output; end all that it started."""
    paths = os.pathsep.join(path for path in sys.path if path)
    with subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        env={**environment, "OPD_TEST_MARK": mark, "PYTHONPATH": paths}, cwd=ROOT, stdout=subprocess.PIPE, text=True, **pipes,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            end_marked(mark)


def end_marked(mark: str) -> None:
    """Kill all marked processes, also of other process groups, as Ray's workers are, and orphans."""
    while found := marked(mark):
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(found, timeout=5)
