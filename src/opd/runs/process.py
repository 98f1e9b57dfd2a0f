"""The identity of a process, told apart from a later one with its pid, and the lock file that ends with it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import socket
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

from opd.store.local import TEMPORARY_PREFIX

logger = logging.getLogger(__name__)


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


ALIVE_FILE = ".alive"
"""Below an attempt's folder: a JSON record of the claim's token and of the inode that is locked, so that a copy tells nothing.

Hidden, as it is no part of what a run leaves.
"""

HELD: list[int] = []
"""Descriptors of the locks that this process has taken; none is closed, which would be the end of the lock."""


def lock_alive(folder: Path, token: str) -> None:
    """Lock the attempt's file until this process ends, and whatever it forks; on a disk that cannot do that, there is the lease.

    The file gets its name when it is locked: nobody finds it free before.
    """
    temporary, descriptor = folder / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}", None
    try:
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, json.dumps(_record(token, descriptor)).encode())
        os.rename(temporary, folder / ALIVE_FILE)
        HELD.append(descriptor)
    except OSError as error:
        logger.info("no lock in %s (%s): the next attempt will wait for the lease", folder, error)
        with contextlib.suppress(OSError):
            if descriptor is not None:
                os.close(descriptor)
            temporary.unlink(missing_ok=True)


def is_lock_free(folder: Path, token: str) -> bool:
    """Whether the claim of this token held a lock here and holds it no more; False where that cannot be told.

    The caller knows that the claim was made under this kernel: a lock of another one is not seen.
    """
    try:
        with open(folder / ALIVE_FILE, "rb") as file:
            if json.loads(file.read()) != _record(token, file.fileno()):
                return False
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
            return True
    except (OSError, ValueError):
        return False


def _record(token: str, descriptor: int) -> dict[str, str | int]:
    status = os.fstat(descriptor)
    return {"token": token, "device": status.st_dev, "inode": status.st_ino}
