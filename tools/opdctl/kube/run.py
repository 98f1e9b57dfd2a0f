"""A run in its namespace, read once: RayJob, pods, what is in the way, and the experiment that was sent."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opd.store.access import StoreAddress, address_of
from opdctl.kube.client import RUN_LABEL, KubeApi
from opdctl.kube.errors import ClusterError
from opdctl.kube.notice import Notice, name_of, read_notice
from opdctl.kube.rayjob import JobState, alarms, read_job
from opdctl.kube.waiting import Event, PodLine, blockers, pod_lines, read_events

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


EXPERIMENT_KEY = "exp.json"


@dataclass(frozen=True, kw_only=True)
class ClusterRun:
    """What a namespace holds of a run; `job` is None once the RayJob is gone (the release and its ConfigMap stay)."""

    job: JobState | None
    pods: list[PodLine] = field(default_factory=list)
    blockers: list[str] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)
    experiment: dict[str, Any] | None = None
    """The spec that the pods read; None where the run is not installed here."""
    notice: Notice | None = None
    """What the run says of its own progress, where it has `cluster.progress`."""

    @property
    def is_known(self) -> bool:
        return self.job is not None or self.experiment is not None

    @property
    def store(self) -> StoreAddress | None:
        """The store of the experiment, None for the default one on the run's volume."""
        return address_of(self.experiment or {})


def look(api: KubeApi, run_id: str) -> ClusterRun:
    """Reads everything that the namespace holds of a run.

    Raises:
        ClusterError: the API server does not answer, or refuses.
    """
    tree = api.find(api.path("rayjobs", run_id))
    config = api.find(api.path("configmaps", run_id))
    experiment = _experiment(config, run_id)
    notice = read_notice(api.find(api.path("configmaps", name_of(run_id))))
    pods = api.list(api.path("pods"), selector=f"{RUN_LABEL}={run_id}")
    if tree is None:
        return ClusterRun(job=None, pods=pod_lines(pods, []), experiment=experiment, notice=notice)
    job = read_job(tree)
    events = read_events(api.list(api.path("events")))
    lines = pod_lines(pods, events)
    return ClusterRun(
        job=job,
        pods=lines,
        blockers=in_the_way(job, lines, events, workloads_of(api, job)),
        alarms=alarms(job, lines),
        experiment=experiment,
        notice=notice,
    )


def stores(api: KubeApi) -> dict[str, StoreAddress]:
    """Run id -> store of every experiment that is installed in the namespace and names one.

    Raises:
        ClusterError: the API server does not answer, or refuses.
    """
    found = {run_id: address_of(experiment) for run_id, experiment in experiments(api).items()}
    return {run_id: at for run_id, at in found.items() if at is not None}


def experiments(api: KubeApi) -> dict[str, dict[str, Any]]:
    """Run id -> experiment of everything that is installed in the namespace.

    Raises:
        ClusterError: the API server does not answer, or refuses.
    """
    configs = {item["metadata"]["name"]: item for item in api.list(api.path("configmaps"), selector=RUN_LABEL)}
    found = {run_id: _experiment(config, run_id) for run_id, config in configs.items()}
    return {run_id: experiment for run_id, experiment in found.items() if experiment is not None}


def in_the_way(
    job: JobState, pods: Sequence[PodLine], events: Sequence[Event], workloads: Sequence[Mapping[str, Any]] = ()
) -> list[str]:
    """What keeps a live run's objects from being made; nothing for a run that has ended."""
    if job.phase == "suspended":
        return [f"suspended by Kueue: {in_queue(job, workloads)}"] if job.queue else []
    if not job.is_live and job.phase != "invalid":
        return []
    there = [pod for pod in pods if pod.is_there]
    overcome = []
    if any(pod.role == "head" for pod in there):
        overcome += ["FailedToCreateHeadPod", "FailedToCreateRayCluster"]
    if sum(pod.role == "worker" for pod in there) >= job.num_workers:
        overcome.append("FailedToCreateWorkerPod")
    if any(pod.role == "submitter" for pod in there):
        overcome += ["FailedCreate", "FailedToCreateRayJobSubmitter"]
    names = [job.name, *([job.ray_cluster] if job.ray_cluster else [])]
    return blockers(events, names=names, since_s=job.created_s, overcome=overcome)


def _experiment(config: dict[str, Any] | None, run_id: str) -> dict[str, Any] | None:
    """The experiment of a run's ConfigMap; one of another tool that happens to have the name is none of ours."""
    labels = (config or {}).get("metadata", {}).get("labels", {})
    text = (config or {}).get("data", {}).get(EXPERIMENT_KEY)
    return json.loads(text) if text is not None and labels.get(RUN_LABEL) == run_id else None
