"""Which process owns something, told apart from a later process with the same pid, container restarts and reboots."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class ProcessIdentity:
    """One process of one boot of one host; `start` is the kernel's start mark of the pid, in the platform's own unit."""

    host: str
    boot_id: str
    pid_namespace: str
    pid: int
    start: str

    def is_gone(self) -> bool | None:
        """True if the process has ended, False if it lives, None if it cannot be seen from here."""
        here = this_process()
        if (self.host, self.boot_id, self.pid_namespace) != (here.host, here.boot_id, here.pid_namespace):
            return None
        start = process_start(self.pid)
        if not start and not _has_no_process(self.pid):
            return None  # hidden from this user (hidepid): only its lease can tell
        return start != self.start

    def is_of_this_kernel(self) -> bool:
        """Whether it ran, or runs, under the kernel of this process since its last boot, in whichever container."""
        here = this_process()
        return bool(here.boot_id) and self.boot_id == here.boot_id


def this_process() -> ProcessIdentity:
    pid = os.getpid()
    return ProcessIdentity(
        host=socket.gethostname(),
        boot_id=_read_if_there(Path("/proc/sys/kernel/random/boot_id")),
        pid_namespace=os.readlink("/proc/self/ns/pid") if sys.platform == "linux" else "",
        pid=pid,
        start=process_start(pid),
    )


def process_start(pid: int) -> str:
    """The start mark of a pid; empty if there is no such process or only its zombie is left."""
    if sys.platform == "linux":
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return ""
        # The command name in parentheses may hold anything; after it come the state (field 3) and field 22, starttime.
        fields = text.rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    listed = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return listed.stdout.strip()


def _has_no_process(pid: int) -> bool:
    """False only if the pid exists and belongs to another user."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return False
    except ProcessLookupError:
        return True
    return True


def _read_if_there(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""
