"""`opdctl wait`: waits for a run's end; the exit code is its result."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from opdctl.console import Context, Namespace, Run, StoreUrl, ToolError, note

if TYPE_CHECKING:
    from opdctl.kube.client import KubeApi
    from opdctl.runs.find import RunPlace
    from opdctl.runs.listing import Listing

# A RayJob that is gone may have been cleaned up after its end: the store shows it, once its last lease is over.
LEASE_S = 60.0
# Without a RayJob a run has failed when its last attempt has been over or silent this long.
SILENT_S = 900.0
POLL_S = 2.0
STORE_POLL_S = 5.0
WaitTimeout = Annotated[
    float | None, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="Give up after this; by default never.")
]


@dataclass(frozen=True, kw_only=True)
class End:
    """The end of a run; `is_gone` means that the RayJob disappeared before one was seen."""

    is_success: bool
    reason: str = ""
    is_gone: bool = False


def wait(
    run: Run,
    store: StoreUrl = None,
    namespace: Namespace = None,
    context: Context = None,
    timeout: WaitTimeout = None,
) -> None:
    """Wait until a run has ended: exit 0 with its result, 1 where it failed or no attempt continues it.

    Example: `opdctl wait my-run -n opd --timeout 3600 && echo done`
    """
    from opdctl.runs.find import Finder

    until_s = time.monotonic() + timeout if timeout is not None else None

    def pause(seconds: float) -> None:
        if until_s is not None and time.monotonic() + seconds > until_s:
            raise ToolError(f"not done after {timeout:g} s", fix="give it longer with --timeout SECONDS")
        time.sleep(seconds)

    found = Finder(store=store, namespace=namespace, context=context).locate(run)
    if found.api is not None and found.in_cluster is not None and found.in_cluster.job is not None:
        end = _wait_for_job(found.api, found.run_id, pause=pause)
        if end.is_gone and found.place is not None:
            end = wait_for_end(found.place, silent_s=LEASE_S, pause=pause)
    elif found.place is not None:
        end = wait_for_end(found.place, silent_s=SILENT_S, pause=pause)
    else:
        why = "; ".join(found.notes)
        raise ToolError(
            f"run {found.run_id} has no RayJob, and no store that can be read from here: {why}",
            fix="name its store with --store URL",
        )
    if not end.is_success:
        fix = f"`opdctl logs {run} --tail 50` shows its last lines"
        raise ToolError(f"run {found.run_id} failed: {end.reason}", fix=fix)
    note(f"run {found.run_id} succeeded")


def _wait_for_job(api: KubeApi, run_id: str, *, pause: Callable[[float], None]) -> End:
    """Wait until the RayJob has ended, through retries and an unreachable API server; note each change."""
    from opdctl.kube.client import ClusterUnreachable
    from opdctl.kube.rayjob import look

    shown = ""
    while True:
        try:
            run = look(api, run_id)
            if run.job is None or run.job.phase == "deleting":
                return End(is_success=False, reason="its RayJob was deleted before it had ended", is_gone=True)
            if not run.job.is_live:
                reason = "; ".join([run.job.describe(), *run.blockers])
                return End(is_success=run.job.phase == "succeeded", reason=reason)
            text = run.describe()
        except ClusterUnreachable as error:
            text = f"the cluster is unreachable, waiting for it: {error}"
        if text != shown:
            note(f"{run_id}: {text}")
            shown = text
        pause(POLL_S)


def wait_for_end(place: RunPlace, *, silent_s: float, pause: Callable[[float], None] = time.sleep) -> End:
    """Wait until the run has its result, or an end that no retry can mend.

    Args:
        silent_s: the run has failed when its last attempt has been over or silent this long.
        pause: waits between two looks.
    """
    from opd.errors import StoreUnavailable
    from opdctl.runs.listing import Listing

    noted = ""
    while True:
        try:
            listing = Listing(place.store)
            if (end := _end(listing, silent_s)) is not None:
                return end
            last = listing.newest()
            text = f"attempt {last.attempt} {last.end}; waiting for another" if last is not None and last.end else ""
        except StoreUnavailable as error:
            text = f"the store is unreachable, waiting for it: {error}"
        if text and text != noted:
            note(text)
        noted = text
        pause(STORE_POLL_S)


def _end(listing: Listing, silent_s: float) -> End | None:
    from opd.runs.result import FATAL_FILE, RESULT_FILE

    if RESULT_FILE in listing:
        return End(is_success=True)
    if FATAL_FILE in listing:
        return End(is_success=False, reason=str((listing.store.get_json(FATAL_FILE) or {}).get("reason", "")))
    if (last := listing.newest()) is None or (age_s := time.time() - last.last_sign_s) < silent_s:
        return None
    how = f"ended ({last.end})" if last.end else "gave no sign of life"
    return End(is_success=False, reason=f"attempt {last.attempt} {how}, and no other followed for {age_s:.0f} s")
