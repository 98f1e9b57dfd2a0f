"""`python copy_lines.py LOG IN OUT [IN OUT ...]`: copies each descriptor IN to OUT as it comes, and to LOG by whole lines.

One process for all streams: where each had its own, a block that ended within a line was cut by the other's. Needs little
of the standard library, so that it starts in some 30 ms (`-I -S`).
"""

import os
import select
import signal
import sys

BLOCK_BYTES = 65536


def copy(log: str, streams: dict[int, int]) -> None:
    """Until every IN has ended; then what is left of unfinished lines."""
    target = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    unfinished = dict.fromkeys(streams, b"")
    poll = select.poll()  # as `select.select` takes no descriptor of 1,024 and above
    for source in streams:
        poll.register(source, select.POLLIN)
    while streams:
        for source, _ in poll.poll():
            block = os.read(source, BLOCK_BYTES)
            if not block:
                _write(target, unfinished.pop(source))
                del streams[source]
                poll.unregister(source)
                continue
            end = block.rfind(b"\n") + 1
            if end or len(unfinished[source]) > BLOCK_BYTES:
                _write(target, unfinished[source] + block[:end])
                unfinished[source] = block[end:]
            else:
                unfinished[source] += block
            _write(streams[source], block)


def _write(descriptor: int, data: bytes) -> None:
    """All of it; a terminal that is gone must not end the log."""
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        pass


if __name__ == "__main__":
    # Who ends the run signals this process together with those that write to it; it outlives them, for their last lines.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    numbers = [int(word) for word in sys.argv[2:]]
    copy(sys.argv[1], dict(zip(numbers[::2], numbers[1::2], strict=True)))
