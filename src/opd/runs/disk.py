"""Whether a failure is a full disk: what libraries report of it seldom says so, and the mend is not in the trainer."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from opd.errors import DiskFull, Overtaken

# A write that failed for want of room has filled the rest up to a block or two.
FULL_BELOW_BYTES = 2**20
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_ERRNOS = {errno.ENOSPC, errno.EDQUOT}


def as_disk_full(error: BaseException, folder: Path) -> DiskFull | None:
    """The error that says it, if `error` came of a full disk under `folder`; None if it did not.

    A full disk is an OSError that says so anywhere in the chain of causes, or next to no room left where the run writes
    (PyTorch's and Ray's own errors carry no number). An attempt that was overtaken ended by that, however little room is left.
    """
    if isinstance(error, Overtaken):
        return None
    is_named = any(isinstance(link, OSError) and link.errno in _ERRNOS for link in _chain(error))
    try:
        status = os.statvfs(folder)
        free, size = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
        room = f" ({free / 2**20:.1f} of {size / 2**20:.0f} MiB free)"
    except OSError:  # its server is away, or has taken the folder with it
        free, room = FULL_BELOW_BYTES, ""
    if free >= FULL_BELOW_BYTES and not is_named:
        return None
    # Ray puts the traceback of the worker into the message and colours it: the cause is its last line.
    cause = (_ANSI.sub("", str(error)).strip().splitlines() or [""])[-1].strip()
    return DiskFull(
        f"the disk of {folder} is full{room}, the run ended with "
        f"{type(error).__name__}: {cause[:200]}; make room (checkpoint.keep_last keeps fewer checkpoints) and start "
        "the run again: it goes on from its last complete checkpoint"
    )


def _chain(error: BaseException | None) -> list[BaseException]:
    """The error, what it came from, and so on."""
    links: list[BaseException] = []
    while error is not None and error not in links:
        links.append(error)
        error = error.__cause__ or error.__context__
    return links
