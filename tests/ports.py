"""Free TCP ports for servers that need theirs before they start."""

import os
import random
import socket
from pathlib import Path

# Above the ports that Ray gives its workers (10002 to 19999).
_LOWEST = 20_000
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_given: set[int] = set()


def free_ports(count: int, *, address: str = "127.0.0.1") -> list[int]:
    """Return distinct ports that nothing listens on and no earlier call gave, below the range of clients and of port 0.

    Any client's connection could take a port of that range before the server starts. Each worker of pytest-xdist draws from
    ports of its own.
    """
    highest = int(_EPHEMERAL.read_text().split()[0]) if _EPHEMERAL.is_file() else 32_768
    if highest - _LOWEST < 1_000:
        highest = 65_536  # a host whose clients may get any port: no range is safe here
    found: list[int] = []
    number, count_of_workers = _worker()
    ours = range(_LOWEST + number, highest, count_of_workers)
    # Not the global generator: tests that seed it would all draw the same ports.
    for port in random.Random().sample(ours, k=len(ours)):
        if port in _given:
            continue  # it may not be bound yet
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            _given.update(found)
            return found
    raise OSError(
        f"{count} free TCP ports wanted on {address} between {_LOWEST} and {highest}, {len(found)} found next to {len(_given)} given before"
    )


def _worker() -> tuple[int, int]:
    """(which worker of pytest-xdist this is, of how many)."""
    name = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    return int(name.removeprefix("gw")), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
