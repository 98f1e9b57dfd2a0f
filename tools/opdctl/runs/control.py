"""Ending a run on its cluster: cancelling, deleting, and waiting for its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from opdctl.chart.helm import Where, uninstall
from opdctl.console import note
from opdctl.errors import ToolError
from opdctl.kube.client import KubeApi
from opdctl.kube.errors import ClusterUnreachable
from opdctl.kube.rayjob import JobState
from opdctl.kube.run import ClusterRun, look
from opdctl.runs.record import RunRecord
from opdctl.runs.state import End
from opdctl.runs.targets import Found

POLL_S = 2.0
# A note on every change, and one now and then while nothing changes.
NOTE_INTERVAL_S = 30.0


def require_job(run: ClusterRun | None, run_id: str, namespace: str) -> JobState:
    """The run's RayJob.

    Raises:
        ToolError: there is none.
    """
    if run is None or run.job is None:
        raise ToolError(
            f"no RayJob {run_id} in namespace {namespace}: it was deleted, or cleaned up after its end",
            fix="`opdctl submit` resumes it; `opdctl list --store URL` shows what it left",
        )
    return run.job


def delete_job(api: KubeApi, run_id: str) -> bool:
    """Deletes the RayJob: KubeRay stops the Ray job, every pod's preStop hook asks the trainer to save and waits."""
    return api.delete(api.path("rayjobs", run_id))


def wait_until_gone(api: KubeApi, run_id: str, *, timeout_s: float) -> None:
    """Wait until RayJob and pods are gone.

    Raises:
        ToolError: it took longer; the deletion continues.
    """
    started_s = noted_s = time.monotonic()
    shown = ""
    while True:
        try:
            run = look(api, run_id)
            if run.job is None and not run.pods:
                return
            text = _shown(run)
        except ClusterUnreachable as error:
            text = f"the cluster is away, waiting goes on: {error}"
        now_s = time.monotonic()
        if now_s - started_s > timeout_s:
            raise ToolError(
                f"run {run_id} is not gone yet after {timeout_s:g} s: {text}",
                fix="the deletion continues: `opdctl status` shows it; or wait longer with --timeout",
            )
        if text != shown or now_s - noted_s > NOTE_INTERVAL_S:
            note(f"{run_id}: {text} ({now_s - started_s:.0f} s)")
            shown, noted_s = text, now_s
        time.sleep(POLL_S)


def _shown(run: ClusterRun) -> str:
    phase = run.job.phase if run.job is not None else "RayJob is gone"
    saving = sum(1 for pod in run.pods if "preStop" in pod.why)
    return f"{phase}, {len(run.pods)} pods" + (f", {saving} of them wait for the save" if saving else "")


def what_is_saved(before: RunRecord | None, after: RunRecord | None) -> str:
    """What a cancelled run keeps, from its store before and after."""
    if after is None:
        return "no store shows from here what it saved: the newest checkpoint on its volume counts"
    if after.kind == "pipeline":
        return f"{after.last_step or 0} stages have finished; the next start goes on in the one behind them, from its newest checkpoint"
    if not after.complete_steps:
        return "no checkpoint is complete: it would start from the beginning"
    newest = after.complete_steps[-1]
    text = f"the newest complete checkpoint is step {newest}"
    had = before.complete_steps[-1] if before is not None and before.complete_steps else None
    if had is not None and newest > had:
        text += f", saved by this request (step {had} before)"
    if after.last_step is not None and after.last_step > newest:
        text += f"; steps {newest + 1} to {after.last_step} will be computed again"
    return text


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


def wait_for_job(api: KubeApi, run_id: str, *, on_change: Callable[[str], None]) -> End:
    """Waits until the RayJob has ended, through retries and an API server that is away.

    Args:
        on_change: told each new phase and each new reason why the run does not go on.
    """
    told = ""
    while True:
        try:
            run = look(api, run_id)
            end = job_end(run)
            if end is not None:
                return end
            text = describe(run)
        except ClusterUnreachable as error:
            text = f"the cluster is away, waiting goes on: {error}"
        if text != told:
            on_change(f"{run_id}: {text}")
            told = text
        time.sleep(POLL_S)


def job_end(run: ClusterRun) -> End | None:
    """The end of the RayJob, None while it goes on."""
    job = run.job
    if job is None or job.phase == "deleting":
        return End(is_success=False, reason="its RayJob was deleted before it had ended", is_gone=True)
    if job.is_live:
        return None
    return End(is_success=job.phase == "succeeded", reason="; ".join([job.describe(), *run.alarms]))


def describe(run: ClusterRun) -> str:
    """The phase and everything in the way."""
    assert run.job is not None
    reasons = list(dict.fromkeys([*run.blockers, *(f"{pod.role} pod: {pod.why}" for pod in run.pods if pod.why)]))
    return "; ".join([run.job.phase, *reasons])
