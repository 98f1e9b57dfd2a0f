"""`opdctl cancel`: the trainer saves, then the RayJob and its pods go; the run can be resumed."""

from opdctl.console import Context, Namespace, Run, StoreUrl, ToolError, note
from opdctl.kube.rayjob import wait_until_gone
from opdctl.runs.find import Finder

# For KubeRay and the kubelet, beyond the pods' own grace.
MARGIN_S = 120.0


def cancel(run: Run, store: StoreUrl = None, namespace: Namespace = None, context: Context = None) -> None:
    """Cancel a run: delete its RayJob; its pods save before they end.

    `opdctl submit` with the same file resumes it.

    Example: `opdctl cancel my-run -n opd`
    """
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
    wait_until_gone(api, found.run_id, timeout_s=job.grace_s + MARGIN_S)
    print(f"{found.run_id}  cancelled")
    print(f"next:\n  opdctl submit EXP.yaml --name {found.run_id} -n {api.namespace}    (resumes it)")
    print(f"  opdctl delete {found.run_id} -n {api.namespace}")
