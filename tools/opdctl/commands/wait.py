"""`opdctl wait`: waits for a run's end; the exit code is its result."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from opdctl.console import DEFAULT_TIMEOUT_S, Context, Namespace, NoCluster, Run, StoreUrl, deadline, note
from opdctl.errors import ToolError

# A RayJob that is gone may have been cleaned up after its end: the store shows it, once its last lease is over.
LEASE_S = 60.0
Silent = Annotated[
    float,
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
    """Wait until a run has ended: exit 0 with its result, 1 where it failed or no attempt continues it.

    Example: `opdctl wait my-run -n opd --timeout 3600 && echo done`
    """
    from opdctl.runs.control import wait_for_end, wait_for_job
    from opdctl.runs.places import Finder

    with deadline(timeout) if timeout is not None else contextlib.nullcontext():
        found = Finder(
            store=store, namespace=namespace, context=context, no_cluster=no_cluster, timeout_s=timeout or DEFAULT_TIMEOUT_S
        ).locate(run)  # fmt: skip
        if found.api is not None and found.in_cluster is not None and found.in_cluster.job is not None:
            end = wait_for_job(found.api, found.run_id, on_change=note)
            if end.is_gone and found.place is not None:
                end = wait_for_end(found.place.store, silent_s=LEASE_S)
        elif found.place is not None:
            end = wait_for_end(found.place.store, silent_s=silent_after)
        else:
            why = "; ".join(found.notes)
            fix = "name its store with --store URL"
            raise ToolError(
                f"run {found.run_id} has no RayJob, and no store that can be read from here: {why}", fix=fix
            )
    if not end.is_success:
        fix = f"`opdctl logs {run} --tail 50` shows its last lines"
        raise ToolError(f"run {found.run_id} failed: {end.reason}", fix=fix)
    note(f"run {found.run_id} succeeded")
