"""`opdctl delete`: removes an ended run from the cluster."""

from typing import Annotated

import typer

from opdctl.chart.helm import uninstall
from opdctl.console import Context, Namespace, Run, StoreUrl, ToolError, usage_error
from opdctl.kube.client import KubeApi
from opdctl.kube.rayjob import ClusterRun, wait_until_gone
from opdctl.runs.find import Finder, Found

Claim = Annotated[bool, typer.Option("--claim", help="Also delete the claim with its checkpoints.")]
Results = Annotated[bool, typer.Option("--results", help="Also delete its directory in the store.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Delete them for good.")]
TIMEOUT_S = 300.0


def delete(
    run: Run,
    store: StoreUrl = None,
    namespace: Namespace = None,
    context: Context = None,
    claim: Claim = False,
    results: Results = False,
    yes: Yes = False,
) -> None:
    """Delete an ended run: its release with all objects; claim and results stay.

    Example: `opdctl delete my-run -n opd --claim --results --yes`
    """
    found = Finder(store=store, namespace=namespace, context=context).locate(run)
    if (claim or results) and not yes:
        words = [word for word, is_asked in (("its checkpoints", claim), ("its results", results)) if is_asked]
        text = f"run {found.run_id}: to delete {' and '.join(words)} cannot be undone"
        raise usage_error(text, fix="say --yes")
    for line in _delete_run(found, claim=claim, results=results):
        print(line)


def _delete_run(found: Found, *, claim: bool, results: bool) -> list[str]:
    """Delete a run; return what is gone and what remains, one line each."""
    run_id, store = found.run_id, found.place.store if found.place is not None else None
    if results and store is None:
        raise ToolError(
            f"the results of {run_id} cannot be deleted: {'; '.join(found.notes) or 'there are none'}",
            fix="name its store with --store URL, or leave out --results",
        )
    lines = _from_cluster(found.api, found.in_cluster, run_id, claim=claim) if found.api and found.in_cluster else []
    if results and store is not None:
        store.delete_tree("")
        return [*lines, f"{run_id}  results deleted: {store.url}"]
    if not lines:
        fix = "--results deletes its directory in the store; name the cluster with -n to delete its release"
        raise ToolError(f"run {run_id}: nothing of it is in a cluster, and its results stay", fix=fix)
    return lines if store is None else [*lines, f"{run_id}  results stay: {store.url}"]


def _from_cluster(api: KubeApi, run: ClusterRun, run_id: str, *, claim: bool) -> list[str]:
    if run.job is not None and run.job.is_live and run.job.phase != "deleting":
        fix = f"`opdctl cancel {run_id} -n {api.namespace}` saves and ends it first"
        raise ToolError(f"run {run_id} is live: {run.job.describe()}", fix=fix)
    lines = [f"{run_id}  release deleted: RayJob, pods, experiment, policies"] * uninstall(run_id, api)
    if run.job is not None or run.pods:
        api.delete(api.path("rayjobs", run_id))
        wait_until_gone(api, run_id, timeout_s=TIMEOUT_S)
    name = f"{run_id}-checkpoints"
    path = api.path("persistentvolumeclaims", name)
    if claim:
        lines.append(f"{run_id}  claim {name} {'deleted' if api.delete(path) else 'was not there'}")
    elif api.find(path) is not None:
        lines.append(f"{run_id}  claim {name} stays: submitting the run again resumes from it")
    return lines
