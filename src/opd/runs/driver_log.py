"""driver.log: a copy of everything the process and its children print, taken at the file descriptors.

Two `tee` processes stand between descriptors 1 and 2 and where they led before, so that C++ prints and the output that
Ray forwards are kept too. They are processes of their own because a thread would die with a SIGKILL of the driver before
it has written what is in the pipe, and would deadlock with native code that prints while it holds the GIL.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TextIO

LOG_FILE = "driver.log"
# A child that outlives the driver (a Ray daemon) keeps the pipe open; the tee then ends with it.
DRAIN_TIMEOUT_S = 5.0


class LogTee:
    """Copies stdout and stderr to `path`, appending; `terminal` writes to the original stdout only (progress bars)."""

    def __init__(self, path: Path):
        self.path = path
        self.terminal: TextIO = sys.stdout
        self._saved: dict[int, int] = {}
        self._tees: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for descriptor in (1, 2):
            _flush_python_streams()
            self._saved[descriptor] = os.dup(descriptor)
            # -i and a session of its own: Ctrl-C must not take the copy away before the driver has said its last words.
            tee = subprocess.Popen(
                ["tee", "-a", "-i", str(self.path)],
                stdin=subprocess.PIPE,
                stdout=self._saved[descriptor],
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            assert tee.stdin is not None
            os.dup2(tee.stdin.fileno(), descriptor)
            tee.stdin.close()
            self._tees.append(tee)
        self.terminal = os.fdopen(os.dup(self._saved[1]), "w", buffering=1)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(line_buffering=True)  # a pipe would hold lines back by the block

    def stop(self) -> None:
        """Gives the descriptors back and waits until the copy holds all that was printed; a second call does nothing."""
        if not self._saved:
            return
        _flush_python_streams()
        for descriptor, saved in self._saved.items():
            os.dup2(saved, descriptor)
            os.close(saved)
        self._saved.clear()
        self.terminal.close()
        self.terminal = sys.stdout
        deadline_s = time.monotonic() + DRAIN_TIMEOUT_S
        for tee in self._tees:
            with contextlib.suppress(subprocess.TimeoutExpired):
                tee.wait(max(deadline_s - time.monotonic(), 0))
        self._tees.clear()


def _flush_python_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
