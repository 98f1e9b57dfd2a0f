"""`opdctl wait`: waits for a run's end; the exit code is its result."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from opdctl.console import DEFAULT_TIMEOUT_S, Context, Namespace, NoCluster, Run, StoreUrl, deadline, note
from opdctl.errors import ToolError

if TYPE_CHECKING:
    from opdctl.runs.record import RunRecord
    from opdctl.runs.targets import RunPlace

# A RayJob that is gone may have been cleaned up after its end: the store knows, once its last lease is over.
LEASE_S = 60.0
Silent = Annotated[
    float | None,
    typer.Option(
        "--silent-after",
        min=1,
        metavar="SECONDS",
        help="Without a RayJob: the run has failed when its last attempt has been over or silent this long.",
    ),
]
WaitTimeout = Annotated[
    float | None, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="Give up after this; by default never.")
]


def wait(
    run: Run,
    store: StoreUrl = None,
    namespace: Namespace = None,
    context: Context = None,
    no_cluster: NoCluster = False,
    silent_after: Silent = 900.0,
    timeout: WaitTimeout = None,
) -> None:
    """Wait until a run has ended: exit 0 with its result, 1 where it failed or nobody goes on with it.

    Example: `opdctl wait my-run -n opd --timeout 3600 && echo done`
    """
    from opdctl.runs.control import wait_for_job
    from opdctl.runs.state import wait_for_end
    from opdctl.runs.targets import locate

    with deadline(timeout) if timeout is not None else contextlib.nullcontext():
        found = locate(
            run, store=store, namespace=namespace, context=context, no_cluster=no_cluster,
            timeout_s=timeout or DEFAULT_TIMEOUT_S,
        )  # fmt: skip
        if found.api is not None and found.in_cluster is not None and found.in_cluster.job is not None:
            end = wait_for_job(found.api, found.run_id, on_change=note)
            if end.is_gone and found.place is not None:
                end = wait_for_end(found.place.store, silent_s=LEASE_S, on_away=note)
        elif found.place is not None:
            end = wait_for_end(
                found.place.store,
                silent_s=silent_after,
                on_away=lambda reason: note(f"the store is away, waiting goes on: {reason}"),
                on_ended=lambda text: note(f"{text} (--silent-after)"),
            )
        else:
            raise ToolError(
                f"run {found.run_id} has no RayJob, and no store that can be read from here: {'; '.join(found.notes)}",
                fix="name its store with --store URL",
            )
    if not end.is_success:
        raise ToolError(
            f"run {found.run_id} failed: {end.reason}", fix=f"`opdctl logs {run} --tail 50` shows its last words"
        )
    note(f"run {found.run_id} succeeded")


def progress_record(place: RunPlace | None) -> RunRecord | None:
    """How far a run has come by its store, None where there is none to read."""
    from opdctl.runs.listing import Listing
    from opdctl.runs.record import read_run

    return None if place is None else read_run(Listing(place.store), run_id=place.run_id)[0]
