"""driver.log: a copy of the output of the process and its children, taken at the file descriptors.

As a program, `python -I -S driver_log.py LOG IN OUT [IN OUT ...]` copies descriptors IN to OUT, and whole lines without
secrets to LOG. It serves all streams, so that no stream cuts into another's line. It reads descriptors 1 and 2, so that C++
prints and Ray's forwarded output are kept, too. A thread would die with a SIGKILL before it has written the pipe's content.
It would deadlock with native code that prints while it holds the GIL.
"""

import contextlib
import importlib
import io
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

LOG_FILE = "driver.log"
COPIER = Path(__file__)
BLOCK_BYTES = 65536
# A child that outlives the driver (a Ray daemon) keeps the pipe open; the copier then ends with the child.
DRAIN_TIMEOUT_S = 5.0


class LogTee:
    """A copy of stdout and stderr to `path`, appending."""

    def __init__(self, path: Path):
        self.path = path
        self._saved: dict[int, int] = {}
        self._copier: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _flush_python_streams()
        pipes = {descriptor: os.pipe() for descriptor in (1, 2)}
        self._saved = {descriptor: os.dup(descriptor) for descriptor in pipes}
        pairs = [number for descriptor, (end, _) in pipes.items() for number in (end, self._saved[descriptor])]
        # A session of its own: Ctrl-C must not end the copy before the driver's last words.
        command = [sys.executable, "-I", "-S", str(COPIER), str(self.path), *map(str, pairs)]
        no = subprocess.DEVNULL
        self._copier = subprocess.Popen(command, pass_fds=pairs, stdin=no, stdout=no, stderr=no, start_new_session=True)
        for descriptor, (end, start) in pipes.items():
            os.dup2(start, descriptor)
            os.close(start)
            os.close(end)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                # A pipe buffers by the block; under PYTHONUNBUFFERED a print is two writes, and streams would mix.
                stream.reconfigure(line_buffering=True, write_through=False)

    def stop(self) -> None:
        """Give the descriptors back and wait for the rest of the copy; a second call does nothing."""
        if self._copier is None:
            return
        _flush_python_streams()
        for descriptor, saved in self._saved.items():
            os.dup2(saved, descriptor)
            os.close(saved)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._copier.wait(DRAIN_TIMEOUT_S)
        self._copier = None


def _flush_python_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def copy(log: str, streams: dict[int, int]) -> None:
    """Copy until every IN has ended, then write the rest of unfinished lines."""
    target = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    sys.path.insert(0, str(COPIER.parents[2]))  # Python starts this program without a path to the package
    redaction = importlib.import_module("opd.redaction")
    secrets = redaction.secret_values(os.environ)
    unfinished = dict.fromkeys(streams, b"")
    poll = select.poll()  # `select.select` takes no descriptor of 1,024 and above
    for source in streams:
        poll.register(source, select.POLLIN)
    while unfinished:
        for source, _ in poll.poll():
            block = os.read(source, BLOCK_BYTES)
            _write(streams[source], block)
            text = unfinished.pop(source) + block
            end = text.rfind(b"\n") + 1 if block and len(text) <= 2 * BLOCK_BYTES else len(text)
            line = redaction.without(text[:end].decode("utf-8", "surrogateescape"), secrets)
            _write(target, line.encode("utf-8", "surrogateescape"))
            if block:
                unfinished[source] = text[end:]
            else:
                poll.unregister(source)


def _write(descriptor: int, data: bytes) -> None:
    """Write all of it; a closed terminal does not end the log."""
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    # A signal to the group must not end the copy before the others' last lines.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    numbers = [int(word) for word in sys.argv[2:]]
    copy(sys.argv[1], dict(zip(numbers[::2], numbers[1::2], strict=True)))
