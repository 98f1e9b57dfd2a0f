"""What a run waits for in Kueue's queue, from the conditions of its Workload."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from opdctl.kube.client import KubeApi
from opdctl.kube.errors import ClusterError
from opdctl.kube.rayjob import JobState

_JOB_LABEL = "kueue.x-k8s.io/job-uid"


def in_queue(job: JobState, workloads: Iterable[Mapping[str, Any]]) -> str:
    """`waits in queue training: insufficient unused quota for ...`, and who took its place if it ran before."""
    text = f"waits in queue {job.queue}"
    for workload in workloads:
        conditions = {item["type"]: item for item in workload.get("status", {}).get("conditions") or ()}
        reserved, evicted = conditions.get("QuotaReserved", {}), conditions.get("Evicted", {})
        if reserved.get("status") == "False" and reserved.get("message"):
            text += f": {reserved['message']}"
        if evicted.get("status") == "True":
            text += f"; it was evicted ({evicted.get('reason', '')}): {evicted.get('message', '')}"
    return text


def workloads_of(api: KubeApi, job: JobState) -> list[dict[str, Any]]:
    """Kueue's objects for a run that it holds back; none where they may not be read."""
    if not job.queue or job.phase not in ("new", "suspending", "suspended"):
        return []
    try:
        return api.list(api.path("workloads"), selector=f"{_JOB_LABEL}={job.uid}")
    except ClusterError:
        return []
