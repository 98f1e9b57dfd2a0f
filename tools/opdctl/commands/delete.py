"""`opdctl delete`: removes an ended run from the cluster, or the claims that no run needs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from opdctl.console import Context, Namespace, StoreUrl, ToolError, note, usage_error

if TYPE_CHECKING:
    from opdctl.kube.client import KubeApi, Tree
    from opdctl.kube.rayjob import ClusterRun
    from opdctl.runs.find import Finder, Found

Run = Annotated[str | None, typer.Argument(metavar="RUN", help="The run.")]
Claim = Annotated[bool, typer.Option("--claim", help="Also delete the claim with its checkpoints.")]
Results = Annotated[bool, typer.Option("--results", help="Also delete its directory in the store.")]
Unused = Annotated[bool, typer.Option("--unused-claims", help="Delete the claims of runs that are gone.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
TIMEOUT_S = 300.0


def delete(
    run: Run = None,
    store: StoreUrl = None,
    namespace: Namespace = None,
    context: Context = None,
    claim: Claim = False,
    results: Results = False,
    unused_claims: Unused = False,
    yes: Yes = False,
) -> None:
    """Delete an ended run: its release with all objects; claim and results stay.

    --unused-claims lists the claims without a release, a RayJob and a pod, and deletes them.

    Examples: `opdctl delete my-run -n opd --claim --results` · `opdctl delete --unused-claims -n opd`
    """
    from opdctl.runs.find import Finder

    if (run is None) != unused_claims:
        raise usage_error("delete takes a run, or --unused-claims", fix="opdctl delete RUN, or --unused-claims")
    finder = Finder(store=store, namespace=namespace, context=context)
    if run is None:
        _delete_unused(finder, yes=yes)
        return
    found = finder.locate(run)
    if claim or results:
        words = [word for word, is_asked in (("its checkpoints", claim), ("its results", results)) if is_asked]
        _confirm(f"run {found.run_id}: delete {' and '.join(words)}", yes=yes)
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
    from opdctl.chart.helm import uninstall
    from opdctl.kube.rayjob import wait_until_gone

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


def unused_claims(api: KubeApi) -> list[Tree]:
    """Return the claims of runs that have neither release nor RayJob here nor a pod that mounts them, by name."""
    from opdctl.kube.client import RUN_LABEL
    from opdctl.kube.rayjob import experiments

    installed = {*experiments(api), *(tree["metadata"]["name"] for tree in api.list(api.path("rayjobs")))}
    volumes = [volume for pod in api.list(api.path("pods")) for volume in pod["spec"].get("volumes") or ()]
    mounted = {item["persistentVolumeClaim"]["claimName"] for item in volumes if "persistentVolumeClaim" in item}
    claims = [tree["metadata"] | tree for tree in api.list(api.path("persistentvolumeclaims"), selector=RUN_LABEL)]
    unused = (item for item in claims if item["labels"][RUN_LABEL] not in installed and item["name"] not in mounted)
    return sorted(unused, key=lambda item: item["name"])


def _delete_unused(finder: Finder, *, yes: bool) -> None:
    from opdctl.kube.client import RUN_LABEL, unix_s
    from opdctl.tables import Sheet, ago

    api = finder.connect()
    claims = unused_claims(api)
    if not claims:
        note(f"every claim of a run in namespace {api.namespace} is needed")
        return
    lines = [
        (item["name"], item["spec"]["resources"]["requests"]["storage"], ago(unix_s(item.get("creationTimestamp"))))
        for item in claims
    ]
    print(Sheet(names=("claim", "size", "made"), lines=lines))
    _confirm(f"delete these {len(claims)} claims with their checkpoints", yes=yes)
    for item in claims:
        api.delete(api.path("persistentvolumeclaims", item["name"]))
        print(f"{item['labels'][RUN_LABEL]}  claim {item['name']} deleted")


def _confirm(what: str, *, yes: bool) -> None:
    """Ask for a yes before something is deleted for good."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise usage_error(f"{what}: this cannot be undone", fix="say --yes")
    typer.confirm(f"{what} for good?", abort=True, err=True)
