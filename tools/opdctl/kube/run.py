"""A run in its namespace, read once: RayJob, pods, obstacles, and the experiment that was sent."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opd.store.access import StoreAddress, address_of
from opdctl.kube.client import RUN_LABEL, KubeApi
from opdctl.kube.errors import ClusterError
from opdctl.kube.rayjob import JobState, alarms, read_job
from opdctl.kube.waiting import Event, PodLine, blockers, pod_lines, read_events

EXPERIMENT_KEY = "exp.json"
_JOB_LABEL = "kueue.x-k8s.io/job-uid"


@dataclass(frozen=True, kw_only=True)
class ClusterRun:
    """A namespace's objects of a run; `job` is None after the RayJob is gone (release and ConfigMap remain).

    Attributes:
        experiment: the spec that the pods read; None where the run is not installed here.
    """

    job: JobState | None
    pods: list[PodLine] = field(default_factory=list)
    blockers: list[str] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)
    experiment: dict[str, Any] | None = None

    @property
    def is_known(self) -> bool:
        return self.job is not None or self.experiment is not None

    @property
    def store(self) -> StoreAddress | None:
        """Store of the experiment; None for the default store on the run's volume."""
        return address_of(self.experiment or {})

    def describe(self) -> str:
        """Return the phase and everything in the way."""
        reasons = [*self.blockers, *(f"{pod.role} pod: {pod.why}" for pod in self.pods if pod.why)]
        phase = self.job.phase if self.job is not None else "RayJob is gone"
        return "; ".join([phase, *dict.fromkeys(reasons)])


def look(api: KubeApi, run_id: str) -> ClusterRun:
    """Read everything that the namespace holds of a run.

    Raises:
        ClusterError: the API server does not answer, or rejects a request.
    """
    tree = api.find(api.path("rayjobs", run_id))
    experiment = _experiment(api.find(api.path("configmaps", run_id)), run_id)
    pods = api.list(api.path("pods"), selector=f"{RUN_LABEL}={run_id}")
    if tree is None:
        return ClusterRun(job=None, pods=pod_lines(pods, []), experiment=experiment)
    job = read_job(tree)
    events = read_events(api.list(api.path("events")))
    lines = pod_lines(pods, events)
    return ClusterRun(
        job=job,
        pods=lines,
        blockers=in_the_way(job, lines, events, workloads_of(api, job)),
        alarms=alarms(job, lines),
        experiment=experiment,
    )


def experiments(api: KubeApi) -> dict[str, dict[str, Any]]:
    """Return the experiment of every run that is installed in the namespace.

    Raises:
        ClusterError: the API server does not answer, or rejects the request.
    """
    configs = {item["metadata"]["name"]: item for item in api.list(api.path("configmaps"), selector=RUN_LABEL)}
    found = {run_id: _experiment(config, run_id) for run_id, config in configs.items()}
    return {run_id: experiment for run_id, experiment in found.items() if experiment is not None}


def _experiment(config: dict[str, Any] | None, run_id: str) -> dict[str, Any] | None:
    """Return the experiment of a run's ConfigMap; None for another tool's ConfigMap of the same name."""
    labels = (config or {}).get("metadata", {}).get("labels", {})
    text = (config or {}).get("data", {}).get(EXPERIMENT_KEY)
    return json.loads(text) if text is not None and labels.get(RUN_LABEL) == run_id else None


def workloads_of(api: KubeApi, job: JobState) -> list[dict[str, Any]]:
    """Read Kueue's objects of a run that it holds back; an empty list without the right to read them."""
    if not job.queue or job.phase not in ("new", "suspending", "suspended"):
        return []
    try:
        return api.list(api.path("workloads"), selector=f"{_JOB_LABEL}={job.uid}")
    except ClusterError:
        return []


def in_queue(job: JobState, workloads: Iterable[Mapping[str, Any]]) -> str:
    """Return Kueue's own sentences about a run that waits in its queue."""
    text = f"waits in queue {job.queue}"
    for workload in workloads:
        conditions = {item["type"]: item for item in workload.get("status", {}).get("conditions") or ()}
        reserved, evicted = conditions.get("QuotaReserved", {}), conditions.get("Evicted", {})
        if reserved.get("status") == "False" and reserved.get("message"):
            text += f": {reserved['message']}"
        if evicted.get("status") == "True":
            text += f"; it was evicted ({evicted.get('reason', '')}): {evicted.get('message', '')}"
    return text


def in_the_way(
    job: JobState, pods: Sequence[PodLine], events: Sequence[Event], workloads: Sequence[Mapping[str, Any]] = ()
) -> list[str]:
    """Return the reasons why a live run's objects cannot be made."""
    if job.phase == "suspended":
        return [f"suspended by Kueue: {in_queue(job, workloads)}"] if job.queue else []
    if not job.is_live and job.phase != "invalid":
        return []
    there = [pod.role for pod in pods if pod.is_there]
    overcome = []
    if "head" in there:
        overcome += ["FailedToCreateHeadPod", "FailedToCreateRayCluster"]
    if there.count("worker") >= job.num_workers:
        overcome.append("FailedToCreateWorkerPod")
    if "submitter" in there:
        overcome += ["FailedCreate", "FailedToCreateRayJobSubmitter"]
    names = [job.name, *([job.ray_cluster] if job.ray_cluster else [])]
    return blockers(events, names=names, since_s=job.created_s, overcome=overcome)
