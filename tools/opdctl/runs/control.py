"""Cancels, suspends and resumes a run on its cluster: checks that its phase allows it, and waits until it is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from opdctl.console import note
from opdctl.errors import ToolError
from opdctl.kube.client import KubeApi
from opdctl.kube.errors import ClusterUnreachable
from opdctl.kube.rayjob import JobState, Phase
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


def refuse_suspend(job: JobState) -> None:
    """Raises ToolError unless the run may be suspended: KubeRay would take the patch and park the run for good."""
    if not job.is_suspendable:
        raise ToolError(
            f"run {job.name} cannot be suspended: it has deletion rules (cluster.lifecycle: rules), and KubeRay would park it as "
            "ValidationFailed for good with its cluster running",
            fix=f"`opdctl cancel {job.name}` saves and ends it, `opdctl submit` resumes it later; or submit it with "
            "cluster.lifecycle: suspendable",
        )
    if not job.is_live or job.phase == "deleting":
        raise ToolError(f"run {job.name} has ended ({job.phase}): there is nothing to suspend")
    if job.queue:
        raise ToolError(
            f"run {job.name} is in Kueue's queue {job.queue}: Kueue alone suspends and resumes it",
            fix=f"`opdctl cancel {job.name}` saves and ends it, `opdctl submit` queues it again",
        )


def refuse_resume(job: JobState) -> None:
    """Raises ToolError unless the run is suspended."""
    if job.wants_suspend and not job.queue:
        return
    if job.queue and job.wants_suspend:
        raise ToolError(f"run {job.name} waits in Kueue's queue {job.queue}, which alone resumes it")
    if job.is_live:
        raise ToolError(f"run {job.name} is not suspended: {job.describe()}")
    raise ToolError(
        f"run {job.name} has ended ({job.phase}): there is nothing to resume here",
        fix="`opdctl submit` with its experiment file resumes it from the newest checkpoint",
    )


def set_suspend(api: KubeApi, run_id: str, *, is_suspended: bool) -> None:
    api.merge(api.path("rayjobs", run_id), {"spec": {"suspend": is_suspended}})


def wait_for_phase(
    api: KubeApi, run_id: str, phases: Iterable[Phase], *, timeout_s: float, poll_s: float = POLL_S
) -> JobState:
    """Waits until a RayJob is in one of the phases; of a suspended one until its pods are gone, too.

    Raises:
        ToolError: it ended otherwise, is gone, or it took too long.
    """
    wanted = tuple(phases)

    def reached(run: ClusterRun) -> bool:
        job = require_job(run, run_id, api.namespace)
        if job.phase not in wanted and not job.is_live:
            raise ToolError(f"run {run_id} is {job.describe()}, not {' or '.join(wanted)}")
        # KubeRay says suspended once the RayCluster object is gone; its pods go after that, and save first.
        return job.phase in wanted and not (job.phase == "suspended" and run.pods)

    return require_job(_wait(api, run_id, reached, timeout_s=timeout_s, poll_s=poll_s), run_id, api.namespace)


def delete_job(api: KubeApi, run_id: str) -> bool:
    """Deletes the RayJob: KubeRay stops the Ray job, every pod's preStop hook asks the trainer to save and waits."""
    return api.delete(api.path("rayjobs", run_id))


def wait_until_gone(api: KubeApi, run_id: str, *, timeout_s: float) -> None:
    """Waits until RayJob and pods are gone.

    Raises:
        ToolError: it took longer; the deletion goes on.
    """
    _wait(api, run_id, lambda run: run.job is None and not run.pods, timeout_s=timeout_s)


def _wait(
    api: KubeApi, run_id: str, is_done: Callable[[ClusterRun], bool], *, timeout_s: float, poll_s: float = POLL_S
) -> ClusterRun:
    started_s = noted_s = time.monotonic()
    shown = ""
    while True:
        try:
            run = look(api, run_id)
            if is_done(run):
                return run
            text = _shown(run)
        except ClusterUnreachable as error:
            text = f"the cluster is away, waiting goes on: {error}"
        now_s = time.monotonic()
        if now_s - started_s > timeout_s:
            raise ToolError(
                f"run {run_id} is not there yet after {timeout_s:g} s: {text}",
                fix="what was asked goes on by itself: `opdctl status` shows it; or wait longer with --timeout",
            )
        if text != shown or now_s - noted_s > NOTE_INTERVAL_S:
            note(f"{run_id}: {text} ({now_s - started_s:.0f} s)")
            shown, noted_s = text, now_s
        time.sleep(poll_s)


def _shown(run: ClusterRun) -> str:
    phase = run.job.phase if run.job is not None else "RayJob is gone"
    saving = sum(1 for pod in run.pods if "preStop" in pod.why)
    return f"{phase}, {len(run.pods)} pods" + (f", {saving} of them wait for the save" if saving else "")


def what_is_saved(before: RunRecord | None, after: RunRecord | None) -> str:
    """What a cancelled or suspended run keeps, from its store before and after."""
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
