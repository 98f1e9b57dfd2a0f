"""`opdctl cancel`: the trainer saves, then the RayJob and its pods go; the run can be resumed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from opdctl.console import Context, Namespace, Run, StoreUrl, deadline, note
from opdctl.errors import ToolError

if TYPE_CHECKING:
    from opdctl.runs.places import RunPlace
    from opdctl.runs.record import RunRecord

NoWait = Annotated[bool, typer.Option("--no-wait", help="Do not wait until its pods are gone.")]
EndTimeout = Annotated[
    float | None,
    typer.Option("--timeout", min=0.1, metavar="SECONDS", help="Wait this long; by default the pods' grace and 2 min."),
]
# For KubeRay and the kubelet, beyond the pods' own grace.
MARGIN_S = 120.0


def cancel(
    run: Run,
    store: StoreUrl = None,
    namespace: Namespace = None,
    context: Context = None,
    no_wait: NoWait = False,
    timeout: EndTimeout = None,
) -> None:
    """Cancel a run: delete its RayJob, whose pods ask the trainer to save and wait for it before they end.

    Release, experiment, checkpoints and store remain; `opdctl submit` with the same file resumes it.

    Example: `opdctl cancel my-run -n opd`
    """
    from opdctl.runs.control import wait_until_gone, what_is_saved
    from opdctl.runs.places import Finder

    with deadline((timeout or 3600.0) + MARGIN_S):
        finder = Finder(store=store, namespace=namespace, context=context, timeout_s=timeout or MARGIN_S)
        found = finder.locate(run, must_be_in_cluster=True)
        api = found.api
        assert api is not None
        if found.in_cluster is None or (job := found.in_cluster.job) is None:
            raise ToolError(
                f"no RayJob {found.run_id} in namespace {api.namespace}: it was deleted, or cleaned up after its end",
                fix="`opdctl submit` resumes it; `opdctl list --store URL` shows what it left",
            )
        before = _record(found.place)
        if not job.is_live:
            note(f"run {found.run_id} has ended already ({job.describe()}): the rest of it is deleted")
        api.delete(api.path("rayjobs", found.run_id))
        if no_wait:
            print(f"{found.run_id}  is being cancelled: its pods wait up to {job.grace_s:.0f} s for the save")
            return
        wait_until_gone(api, found.run_id, timeout_s=timeout or job.grace_s + MARGIN_S)
        after = _record(found.place)
    print(f"{found.run_id}  cancelled; {what_is_saved(before, after)}")
    print(f"next:\n  opdctl submit EXP.yaml --name {found.run_id} -n {api.namespace}    (resumes it)")
    print(f"  opdctl delete {found.run_id} -n {api.namespace}")


def _record(place: RunPlace | None) -> RunRecord | None:
    """Read a run's record from its store; None without a store."""
    from opdctl.runs.listing import Listing
    from opdctl.runs.record import read_run

    return None if place is None else read_run(Listing(place.store), run_id=place.run_id)[0]
