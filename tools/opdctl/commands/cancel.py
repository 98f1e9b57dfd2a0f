"""`opdctl cancel`: the trainer saves, then the RayJob and its pods go; the run can be resumed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from opdctl.console import Context, Namespace, Run, StoreUrl, ToolError, note

if TYPE_CHECKING:
    from opdctl.runs.find import RunPlace

EndTimeout = Annotated[
    float | None,
    typer.Option("--timeout", min=0.1, metavar="SECONDS", help="Wait this long."),
]
# For KubeRay and the kubelet, beyond the pods' own grace.
MARGIN_S = 120.0


def cancel(
    run: Run,
    store: StoreUrl = None,
    namespace: Namespace = None,
    context: Context = None,
    timeout: EndTimeout = None,
) -> None:
    """Cancel a run: delete its RayJob; its pods save before they end.

    `opdctl submit` with the same file resumes it.

    Example: `opdctl cancel my-run -n opd`
    """
    from opdctl.kube.rayjob import wait_until_gone
    from opdctl.runs.find import Finder

    found = Finder(store=store, namespace=namespace, context=context).locate(run)
    api, job = found.api, found.in_cluster.job if found.in_cluster else None
    if api is None or job is None:
        where = f"namespace {api.namespace}" if api else "the cluster"
        raise ToolError(
            f"no RayJob {found.run_id} in {where}: {'; '.join(found.notes) or 'it was deleted, or cleaned up after its end'}",
            fix="name its namespace with -n; `opdctl submit` resumes a run that is gone",
        )
    if not job.is_live:
        note(f"run {found.run_id} has ended already ({job.describe()}): the rest of it is deleted")
    api.delete(api.path("rayjobs", found.run_id))
    wait_until_gone(api, found.run_id, timeout_s=timeout or job.grace_s + MARGIN_S)
    print(f"{found.run_id}  cancelled; {_saved(found.place)}")
    print(f"next:\n  opdctl submit EXP.yaml --name {found.run_id} -n {api.namespace}    (resumes it)")
    print(f"  opdctl delete {found.run_id} -n {api.namespace}")


def _saved(place: RunPlace | None) -> str:
    """Return what a cancelled run keeps, as its store shows it."""
    from opdctl.runs.gather import gather

    if place is None:
        return "no store shows from here what it saved: the newest checkpoint on its volume counts"
    record = gather([place])[0].record
    if record.kind == "pipeline":
        return f"{record.last_step or 0} stages have finished; the next start resumes the stage after them"
    steps = record.complete_steps
    found = f"the newest complete checkpoint is step {steps[-1]}" if steps else "no checkpoint is complete"
    return f"{found}, after {record.last_step or 0} steps"
