"""Who listens where: the TCP sockets of a process and all of its descendants, as the kernel lists them."""

from __future__ import annotations

import ipaddress
import os
import re
from pathlib import Path
from typing import NamedTuple

_LISTEN = "0A"
_INODE = re.compile(r"socket:\[(\d+)\]")


class Listener(NamedTuple):
    """One listening socket."""

    address: str
    port: int
    command: str
    """The process's command line, its first 160 characters."""

    @property
    def is_loopback(self) -> bool:
        address = ipaddress.ip_address(self.address)
        return address.is_loopback or bool(getattr(address, "ipv4_mapped", None) and address.ipv4_mapped.is_loopback)


def descendants(pid: int) -> set[int]:
    """The process and everything it started, directly or not."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def listeners(pid: int) -> set[Listener]:
    """Return the TCP sockets on which the process and its descendants listen."""
    by_inode: dict[str, tuple[str, int]] = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTEN:
                host, _, port = fields[1].partition(":")
                by_inode[fields[9]] = (_address(host), int(port, 16))
    found = set()
    for process in descendants(pid):
        try:
            links = [os.readlink(link) for link in Path(f"/proc/{process}/fd").iterdir()]
            command = Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:160]
        except OSError:
            continue
        for match in filter(None, map(_INODE.fullmatch, links)):
            if match[1] in by_inode:
                found.add(Listener(*by_inode[match[1]], command))
    return found


def _address(text: str) -> str:
    """The kernel's hexadecimal form: 32-bit words in the host's (little-endian) order."""
    words = [bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8)]
    return str(ipaddress.ip_address(b"".join(words)))
