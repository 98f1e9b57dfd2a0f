"""`opdctl cancel`: the trainer saves, then the RayJob and its pods go; the run can be resumed."""

from __future__ import annotations

from typing import Annotated

import typer

from opdctl.console import Context, Namespace, Run, StoreUrl, deadline, note

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
    """Cancel a run: deletes its RayJob, whose pods ask the trainer to save and wait for it before they go.

    Release, experiment, checkpoints and store remain; `opdctl submit` with the same file resumes it.

    Example: `opdctl cancel my-run -n opd`
    """
    from opdctl.commands.wait import progress_record
    from opdctl.runs.control import delete_job, require_job, wait_until_gone, what_is_saved
    from opdctl.runs.targets import in_cluster

    with deadline((timeout or 3600.0) + MARGIN_S):
        api, found = in_cluster(run, store=store, namespace=namespace, context=context, timeout_s=timeout or MARGIN_S)
        job = require_job(found.in_cluster, found.run_id, api.namespace)
        before = progress_record(found.place)
        if not job.is_live:
            note(f"run {found.run_id} has ended already ({job.describe()}): what is left of it goes")
        delete_job(api, found.run_id)
        if no_wait:
            print(f"{found.run_id}  is being cancelled: its pods wait up to {job.grace_s:.0f} s for the save")
            return
        wait_until_gone(api, found.run_id, timeout_s=timeout or job.grace_s + MARGIN_S)
        after = progress_record(found.place)
    print(f"{found.run_id}  cancelled; {what_is_saved(before, after)}")
    print(f"next:\n  opdctl submit EXP.yaml --name {found.run_id} -n {api.namespace}    (resumes it)")
    print(f"  opdctl delete {found.run_id} -n {api.namespace}")
