"""Waits for a RayJob's end: a run in its cluster is over when KubeRay says so, even if its store stays unchanged."""

from __future__ import annotations

import time
from collections.abc import Callable

from opdctl.kube.client import KubeApi
from opdctl.kube.errors import ClusterUnreachable
from opdctl.kube.run import ClusterRun, look
from opdctl.runs.state import End

POLL_S = 5.0


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
