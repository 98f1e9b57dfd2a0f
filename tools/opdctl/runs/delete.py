"""Deletes a run: says what will be taken away, and refuses while the run is live."""

from __future__ import annotations

from dataclasses import dataclass

from opdctl.chart.helm import Where, uninstall
from opdctl.errors import ToolError
from opdctl.runs.control import wait_until_gone
from opdctl.runs.locate import Found


@dataclass(frozen=True, kw_only=True)
class Deletion:
    """What goes beside the release: the claim with the checkpoints, the directory in the store."""

    claim: bool
    results: bool


def delete_run(found: Found, wanted: Deletion, *, timeout_s: float) -> list[str]:
    """Deletes a run; returns what is gone and what stays, a line each.

    Raises:
        ToolError: the run is live, or what was asked for cannot be reached.
    """
    if wanted.results and found.place is None:
        raise ToolError(
            f"the results of {found.run_id} cannot be deleted: {'; '.join(found.notes) or 'there are none'}",
            fix="name its store with --store URL, or leave out --results",
        )
    lines = _from_cluster(found, wanted, timeout_s) if found.api is not None else []
    if wanted.results and found.place is not None:
        found.place.store.delete_tree("")
        lines.append(f"{found.run_id}  results deleted: {found.place.store.url}")
    elif found.place is not None:
        lines.append(f"{found.run_id}  results stay: {found.place.store.url}")
    return lines


def _from_cluster(found: Found, wanted: Deletion, timeout_s: float) -> list[str]:
    api, run = found.api, found.in_cluster
    assert api is not None
    assert run is not None
    if run.job is not None and run.job.is_live and run.job.phase != "deleting":
        raise ToolError(
            f"run {found.run_id} is live: {run.job.describe()}",
            fix=f"`opdctl cancel {found.run_id} -n {api.namespace}` saves and ends it first",
        )
    lines = []
    if uninstall(found.run_id, Where(namespace=api.namespace, context=api.context), timeout_s=timeout_s):
        lines.append(f"{found.run_id}  release deleted: RayJob, pods, experiment, policies")
    if run.job is not None or run.pods:
        api.delete(api.path("rayjobs", found.run_id))
        wait_until_gone(api, found.run_id, timeout_s=timeout_s)
    name = f"{found.run_id}-checkpoints"
    path = api.path("persistentvolumeclaims", name)
    if wanted.claim:
        is_gone = api.delete(path)
        lines.append(f"{found.run_id}  claim {name} {'deleted' if is_gone else 'was not there'}")
    elif api.find(path) is not None:
        lines.append(f"{found.run_id}  claim {name} stays: submitting the run again resumes from it")
    return lines or [f"{found.run_id}  nothing of it in namespace {api.namespace}"]
