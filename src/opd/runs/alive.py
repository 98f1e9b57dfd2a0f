"""A lock that ends with the process which took it: who finds it free, on the same kernel, knows that the attempt's owner is gone.

Pods of one node share its kernel and the disk of the run, but neither a host name nor each other's processes. A lease is waited for
only where this says nothing: on another machine, on a disk that cannot lock, for an attempt of an older version.
"""

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

FILE = ".alive"
"""Below an attempt's folder: a JSON record of the claim's token and of the inode that is locked, so that a copy tells nothing.

Hidden, as it is no part of what a run leaves.
"""

HELD: list[int] = []
"""Descriptors of the locks that this process has taken; none is closed, which would be the end of the lock."""


def take(folder: Path, token: str) -> None:
    """Lock the attempt's file until this process ends, and whatever it forks; on a disk that cannot do that, there is the lease.

    The file gets its name when it is locked: nobody finds it free before.
    """
    temporary, descriptor = folder / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}", None
    try:
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, json.dumps(_record(token, descriptor)).encode())
        os.rename(temporary, folder / FILE)
        HELD.append(descriptor)
    except OSError as error:
        logger.info("no lock in %s (%s): the next attempt will wait for the lease", folder, error)
        with contextlib.suppress(OSError):
            if descriptor is not None:
                os.close(descriptor)
            temporary.unlink(missing_ok=True)


def is_free(folder: Path, token: str) -> bool:
    """Whether the claim of this token held a lock here and holds it no more; False where that cannot be told.

    The caller knows that the claim was made under this kernel: a lock of another one is not seen.
    """
    try:
        with open(folder / FILE, "rb") as file:
            if json.loads(file.read()) != _record(token, file.fileno()):
                return False
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
            return True
    except (OSError, ValueError):
        return False


def _record(token: str, descriptor: int) -> dict[str, str | int]:
    status = os.fstat(descriptor)
    return {"token": token, "device": status.st_dev, "inode": status.st_ino}
