"""The end of a run: result.json, written last, fatal.json, which stops an installation's retries, or a full disk."""

import contextlib
import errno
import logging
import os
import re
from pathlib import Path

from opd.errors import DiskFull, Overtaken, RunFatal, RunFinished
from opd.store.base import Store

logger = logging.getLogger(__name__)

RESULT_FILE = "result.json"
FATAL_FILE = "fatal.json"
INSTALL_VARIABLE = "OPD_INSTALL"
"""The name of one `helm install`, set by our charts: all pods of its RayJob share it, later installations have another."""
# A write that failed for lack of space fills the disk up to a block or two.
FULL_BELOW_BYTES = 2**20
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def refuse_if_over(store: Store) -> None:
    """Raise RunFinished or RunFatal if no attempt of this installation may follow, and sync the record.

    A fatal.json of another installation is removed: the user has mended the cause and installed the run again.
    """
    result, fatal = store.get_json(RESULT_FILE), store.get_json(FATAL_FILE)
    if result is not None:
        store.keep(RESULT_FILE)
        raise RunFinished(f"{store.url} finished in attempt {result['attempt']}: see {store.url}/{RESULT_FILE}", result)
    if fatal is None:
        return
    if fatal.get("install", "") != os.environ.get(INSTALL_VARIABLE, ""):
        logger.warning("an earlier installation ended for good, this one tries again: %s", fatal.get("reason"))
        store.delete(FATAL_FILE)
        return
    store.keep(FATAL_FILE)
    raise RunFatal(
        f"{store.url} ended for good in attempt {fatal.get('attempt')}: {fatal.get('reason')}\n"
        f"mend the cause, then `opdctl submit FILE --retry` (or delete {store.url}/{FATAL_FILE}), or start under another name"
    )


def as_disk_full(error: BaseException, folder: Path) -> DiskFull | None:
    """Return the error's cause as DiskFull, None for another cause.

    The cause is a full disk if an OSError in the chain says so, or if the run's disk has next to no space.
    PyTorch's and Ray's own errors carry no number.
    """
    chain, link = list[BaseException](), error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or link.__context__  # type: ignore[assignment]
    is_full = any(isinstance(link, OSError) and link.errno in (errno.ENOSPC, errno.EDQUOT) for link in chain)
    with contextlib.suppress(OSError):  # its server is unreachable, or the folder is gone
        status = os.statvfs(folder)
        is_full |= status.f_bavail * status.f_frsize < FULL_BELOW_BYTES
    if isinstance(error, Overtaken) or not is_full:
        return None
    # Ray's message holds the worker's traceback in colours: the cause is its last line.
    cause = (_ANSI.sub("", str(error)).strip().splitlines() or [""])[-1].strip()
    return DiskFull(
        f"the disk of {folder} is full, the run ended with {type(error).__name__}: {cause[:200]}. Make room "
        "(checkpoint.keep_last keeps fewer checkpoints) and start the run again. It resumes from its last complete checkpoint"
    )
