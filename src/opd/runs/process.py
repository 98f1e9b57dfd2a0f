"""Locks by which a later attempt under the same kernel learns that an attempt's process has ended."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import uuid
from pathlib import Path

from opd.store.local import TEMPORARY_PREFIX

logger = logging.getLogger(__name__)

ALIVE_FILE = ".alive"
"""A hidden JSON record in an attempt's folder: the claim's token and the locked inode, so that a copy proves nothing."""
HELD: list[int] = []
"""Descriptors of this process's locks; closing a descriptor would release its lock."""


def boot_id() -> str:
    """Return the name of the kernel's present boot, which all containers of a machine share; empty outside Linux."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else ""


def lock_alive(folder: Path, token: str) -> None:
    """Lock the attempt's file until this process and its forks end; a disk without locks leaves only the lease.

    The file gets its name after it is locked, so no reader finds it unlocked.
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


def is_locked(folder: Path, token: str) -> bool | None:
    """Return True while the claim's process holds its lock, False after it has ended, None where neither is known.

    The caller knows that the claim was made under this kernel: a lock of another kernel does not show here.
    """
    try:
        with open(folder / ALIVE_FILE, "rb") as file:
            if json.loads(file.read()) != _record(token, file.fileno()):
                return None
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False
    except (OSError, ValueError):
        return None


def _record(token: str, descriptor: int) -> dict[str, str | int]:
    status = os.fstat(descriptor)
    return {"token": token, "device": status.st_dev, "inode": status.st_ino}
