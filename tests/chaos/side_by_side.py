"""Several scenarios at once, each in a process and a folder of its own: they share the uninterrupted run only."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.chaos.attempt import ROOT, require
from tests.chaos.report import Row, read_rows

_POLL_S = 0.5


def play(names: Sequence[str], *, jobs: int, folder: Path, options: Sequence[str]) -> Iterator[Row]:
    """The rows of the scenarios as they end; what each prints is in `folder`/NAME.log, what a failed one left in `folder`/NAME.

    Args:
        jobs: how many at a time; each needs about two cores and 4 GB.
        options: more words of the command line, for every scenario.
    """
    waiting, running = list(names), dict[str, subprocess.Popen[bytes]]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                name = waiting.pop(0)
                own = ("--folder", str(folder / name), "--table", str(folder / name / "table.md"))
                with (folder / f"{name}.log").open("wb") as log:
                    running[name] = subprocess.Popen(
                        [sys.executable, "-m", "tests.chaos", name, *own, *options],
                        cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                    )  # fmt: skip
            for name in [name for name, process in running.items() if process.poll() is not None]:
                code = running.pop(name).returncode
                rows = read_rows(folder / name / "summary.json")
                require(name in rows, f"{name} ended with {code} and without a row; see {folder / name}.log")
                yield rows[name]
            time.sleep(_POLL_S)
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()
