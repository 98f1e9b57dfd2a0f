"""The end of a run: result.json, written last, or fatal.json, which stops an installation's retries."""

from __future__ import annotations

import logging
import os

from opd.errors import RunFatal, RunFinished
from opd.store.base import Store

logger = logging.getLogger(__name__)

RESULT_FILE = "result.json"
FATAL_FILE = "fatal.json"
INSTALL_VARIABLE = "OPD_INSTALL"
"""The name of one `helm install`, set by our charts: all pods of its RayJob share it, later installations have another."""


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
        f"mend the cause, then `opdctl submit FILE --retry` (or delete {store.url}/{FATAL_FILE}), or start under another name",
        fatal,
    )


def clear_fatal(store: Store) -> bool:
    """Let a run be started again after its fatal.json; return True if there was one. `store` is the run's own folder."""
    was_there = store.exists(FATAL_FILE)
    store.delete(FATAL_FILE)
    return was_there
