"""driver.log: a copy of the output of the process and its children, taken at the file descriptors.

A copying process (`copy_lines.py`) reads descriptors 1 and 2, so that C++ prints and Ray's forwarded output are kept, too.
A thread would die with a SIGKILL before it has written the pipe's content. It would deadlock with native code that prints
while it holds the GIL.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import TextIO

LOG_FILE = "driver.log"
COPIER = Path(__file__).with_name("copy_lines.py")
# A child that outlives the driver (a Ray daemon) keeps the pipe open; the copier then ends with the child.
DRAIN_TIMEOUT_S = 5.0


class LogTee:
    """A copy of stdout and stderr to `path`, appending; `terminal` writes to the original stdout only (progress bars)."""

    def __init__(self, path: Path):
        self.path = path
        self.terminal: TextIO = sys.stdout
        self._saved: dict[int, int] = {}
        self._copier: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _flush_python_streams()
        pipes = {descriptor: os.pipe() for descriptor in (1, 2)}
        self._saved = {descriptor: os.dup(descriptor) for descriptor in pipes}
        pairs = [number for descriptor, (end, _) in pipes.items() for number in (end, self._saved[descriptor])]
        # A session of its own: Ctrl-C must not end the copy before the driver's last words.
        self._copier = subprocess.Popen(
            [sys.executable, "-I", "-S", str(COPIER), str(self.path), *map(str, pairs)],
            pass_fds=pairs,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for descriptor, (end, start) in pipes.items():
            os.dup2(start, descriptor)
            os.close(start)
            os.close(end)
        self.terminal = os.fdopen(os.dup(self._saved[1]), "w", buffering=1)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                # A pipe buffers by the block; under PYTHONUNBUFFERED a print is two writes, and streams would mix.
                stream.reconfigure(line_buffering=True, write_through=False)

    def stop(self) -> None:
        """Give the descriptors back and wait for the rest of the copy; a second call does nothing."""
        if not self._saved:
            return
        _flush_python_streams()
        for descriptor, saved in self._saved.items():
            os.dup2(saved, descriptor)
            os.close(saved)
        self._saved.clear()
        self.terminal.close()
        self.terminal = sys.stdout
        assert self._copier is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._copier.wait(DRAIN_TIMEOUT_S)
        self._copier = None


def _flush_python_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
