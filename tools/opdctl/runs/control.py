"""Ending a run on its cluster: its RayJob goes, and its pods save first."""

from __future__ import annotations

import time

from opdctl.console import note
from opdctl.errors import ToolError
from opdctl.kube.client import KubeApi
from opdctl.kube.errors import ClusterUnreachable
from opdctl.kube.rayjob import JobState
from opdctl.kube.run import ClusterRun, look
from opdctl.runs.record import RunRecord

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
