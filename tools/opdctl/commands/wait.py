"""`opdctl wait`: waits for a run's end; the exit code is its result."""

import contextlib
import math
import time
from functools import partial
from typing import Annotated

import typer

from opd.errors import StoreError
from opd.runs.result import FATAL_FILE, RESULT_FILE
from opdctl.console import Context, Namespace, Run, StoreUrl, ToolError, note
from opdctl.kube.client import KubeApi, wait_until
from opdctl.kube.rayjob import look
from opdctl.runs.find import Finder, RunPlace
from opdctl.runs.listing import Listing

# A RayJob that is gone may have been cleaned up after its end: the store shows it, once its last lease is over.
LEASE_S = 60.0
# Without a RayJob a run has failed when its last attempt has been over or silent this long.
SILENT_S = 900.0
POLL_S = 2.0
GONE = "its RayJob was deleted before it had ended"
WaitTimeout = Annotated[float | None, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="Give up after this.")]
End = tuple[bool, str]
"""Success of a run that has ended, and the reason."""


def wait(
    run: Run, store: StoreUrl = None, namespace: Namespace = None, context: Context = None, timeout: WaitTimeout = None
) -> None:
    """Wait until a run has ended; exit 1 where it failed or no attempt continues it.

    Example: `opdctl wait my-run -n opd --timeout 3600 && echo done`
    """
    until_s = time.monotonic() + (math.inf if timeout is None else timeout)

    def pause() -> None:
        if time.monotonic() + POLL_S > until_s:
            raise ToolError(f"not done after {timeout:g} s", fix="give it longer with --timeout SECONDS")
        time.sleep(POLL_S)

    found = Finder(store=store, namespace=namespace, context=context).locate(run)
    api, job = found.api, found.in_cluster.job if found.in_cluster is not None else None
    if job is None and found.place is None:
        why = f"no RayJob, and no store that can be read from here: {'; '.join(found.notes)}"
        raise ToolError(f"run {found.run_id} has {why}", fix="name its store with --store URL")
    is_success, reason = False, GONE
    if api is not None and job is not None:
        is_success, reason = wait_until(partial(_in_cluster, api, found.run_id), pause=pause)
        if not is_success and reason != GONE and found.place is not None:
            with contextlib.suppress(StoreError):  # the store adds the attempt's own words
                last = Listing(found.place.store).newest()
                reason += f"; attempt {last.attempt} {last.end}" if last is not None and last.end else ""
    if found.place is not None and reason == GONE:
        silent_s = SILENT_S if job is None else LEASE_S
        is_success, reason = wait_until(partial(in_store, found.place, silent_s), pause=pause)
    if not is_success:
        fix = f"`opdctl logs {run} --tail 50` shows its last lines"
        raise ToolError(f"run {found.run_id} failed: {reason}", fix=fix)
    note(f"run {found.run_id} succeeded")


def _in_cluster(api: KubeApi, run_id: str) -> End | str:
    run = look(api, run_id)
    if run.job is None or run.job.phase == "deleting":
        return False, GONE
    if run.job.is_live:
        return f"{run_id}: {run.describe()}"
    return run.job.phase == "succeeded", "; ".join([run.job.describe(), *run.blockers])


def in_store(place: RunPlace, silent_s: float) -> End | str:
    """Return the run's result, or an end that no retry can mend; else the state of its last attempt.

    Args:
        silent_s: the run has failed when its last attempt has been over or silent this long.
    """
    listing = Listing(place.store)
    if RESULT_FILE in listing:
        return True, ""
    if FATAL_FILE in listing:
        return False, str((listing.store.get_json(FATAL_FILE) or {}).get("reason", ""))
    if (last := listing.newest()) is None:
        return ""
    if (age_s := time.time() - last.last_sign_s) < silent_s:
        return f"attempt {last.attempt} {last.end}; waiting for another" if last.end else ""
    how = f"ended ({last.end})" if last.end else "gave no sign of life"
    return False, f"attempt {last.attempt} {how}, and no other followed for {age_s:.0f} s"
