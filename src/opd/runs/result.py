"""How a run ends: result.json, written behind all that the run leaves, or fatal.json, which tells later attempts not to try again."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from opd.errors import RunFatal, RunFinished
from opd.store.base import Store

RESULT_FILE = "result.json"
FATAL_FILE = "fatal.json"


def write_result(
    store: Store, result: Mapping[str, Any], *, run_id: str, attempt: int, spec_hash: str
) -> dict[str, Any]:
    """Writes result.json atomically: the caller's values and which attempt of which experiment they come from."""
    record = {**result, "run_id": run_id, "attempt": attempt, "spec_hash": spec_hash, "finished_at_s": time.time()}
    store.put_json(RESULT_FILE, record)
    return record


def write_fatal(store: Store, reason: str, *, run_id: str, attempt: int) -> dict[str, Any]:
    """Writes fatal.json: no retry can mend this run, as `reason` says."""
    record = {"reason": reason, "run_id": run_id, "attempt": attempt, "time_s": time.time()}
    store.put_json(FATAL_FILE, record)
    return record


def refuse_if_over(store: Store) -> None:
    """Raises RunFinished or RunFatal if the run has ended for good, with what the earlier attempt left; no power cut takes it."""
    result = store.get_json(RESULT_FILE)
    if result is not None:
        store.keep(RESULT_FILE)
        raise RunFinished(f"{store.url} finished in attempt {result['attempt']}: see {store.url}/{RESULT_FILE}", result)
    fatal = store.get_json(FATAL_FILE)
    if fatal is not None:
        store.keep(FATAL_FILE)
        raise RunFatal(
            f"{store.url} ended for good in attempt {fatal['attempt']}: {fatal['reason']}\n"
            f"mend the cause and start under another name, or delete {store.url}/{FATAL_FILE} to try again",
            fatal,
        )
