"""A program: `python copy_lines.py LOG IN OUT [IN OUT ...]` copies descriptors IN to OUT, and whole lines without secrets to LOG.

One process serves all streams, so that no stream cuts into another's line. It starts within tens of milliseconds (`-I -S`).
"""

import importlib.util
import os
import select
import signal
import sys
from collections.abc import Callable

BLOCK_BYTES = 65536
REDACTION = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "redaction.py")


def copy(log: str, streams: dict[int, int]) -> None:
    """Copy until every IN has ended, then write the rest of unfinished lines."""
    target = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    redacted = _redaction()
    unfinished = dict.fromkeys(streams, b"")
    poll = select.poll()  # `select.select` takes no descriptor of 1,024 and above
    for source in streams:
        poll.register(source, select.POLLIN)
    while streams:
        for source, _ in poll.poll():
            block = os.read(source, BLOCK_BYTES)
            if not block:
                _write(target, redacted(unfinished.pop(source)))
                del streams[source]
                poll.unregister(source)
                continue
            _write(streams[source], block)
            end = block.rfind(b"\n") + 1
            if end or len(unfinished[source]) > BLOCK_BYTES:
                _write(target, redacted(unfinished[source] + block[:end]))
                unfinished[source] = block[end:]
            else:
                unfinished[source] += block


def _redaction() -> Callable[[bytes], bytes]:
    """Load the rule of `opd.redaction` without the package, which would import more."""
    spec = importlib.util.spec_from_file_location("redaction", REDACTION)
    assert spec is not None
    assert spec.loader is not None
    rule = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rule)
    secrets = rule.secret_values(os.environ)

    def redacted(data: bytes) -> bytes:
        text: str = rule.without(data.decode("utf-8", "surrogateescape"), secrets)
        return text.encode("utf-8", "surrogateescape")

    return redacted


def _write(descriptor: int, data: bytes) -> None:
    """Write all of it; a closed terminal does not end the log."""
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        pass


if __name__ == "__main__":
    signal.signal(
        signal.SIGTERM, signal.SIG_IGN
    )  # a signal to the group must not end the copy before the others' last lines
    numbers = [int(word) for word in sys.argv[2:]]
    copy(sys.argv[1], dict(zip(numbers[::2], numbers[1::2], strict=True)))
