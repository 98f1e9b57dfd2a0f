"""A RayJob's state: one phase out of KubeRay's two status fields, and the run's objects in its namespace, read once.

`jobStatus` is Ray's word for the job, `jobDeploymentStatus` the operator's word for everything around it.
"""

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opd.store.access import StoreAddress, address_of
from opdctl.console import ToolError
from opdctl.kube.client import (
    KIND_LABEL,
    KUEUE,
    QUEUE_LABEL,
    RUN_LABEL,
    ClusterError,
    KubeApi,
    Tree,
    unix_s,
    wait_until,
)
from opdctl.kube.waiting import Event, PodLine, blockers, last_s, pod_lines

# Phases that KubeRay leaves by itself, or after a resume.
LIVE = ("new", "starting", "running", "retrying", "suspending", "suspended", "deleting")
_BY_DEPLOYMENT = {
    "": "new", "Initializing": "starting", "Waiting": "starting", "Running": "running", "Retrying": "retrying",
    "Suspending": "suspending", "Suspended": "suspended", "Failed": "failed", "ValidationFailed": "invalid",
}  # fmt: skip
_BY_JOB = {"SUCCEEDED": "succeeded", "FAILED": "failed", "STOPPED": "stopped"}
# An operator that runs takes up a RayJob within seconds.
UNSEEN_S = 60.0
POLL_S = 2.0
_UID_LABEL = f"{KUEUE}/job-uid"
EXPERIMENT_KEY = "exp.json"


@dataclass(frozen=True, kw_only=True)
class JobState:
    """One RayJob.

    Attributes:
        kind: the experiment's, by the label `opd/kind`; empty without one.
        ray_cluster: name of its RayCluster; empty before there is one and after a suspend.
        grace_s: the longest termination grace of its pods, seconds: the time for a save.
    """

    name: str
    uid: str
    kind: str
    phase: str
    job_status: str
    why: str
    ray_cluster: str
    queue: str
    num_failed: int
    backoff_limit: int
    grace_s: float
    started_s: float
    created_s: float

    @property
    def is_live(self) -> bool:
        return self.phase in LIVE

    def describe(self) -> str:
        """Return `running (RUNNING), Ray cluster r-x7k2p, try 2 of 4`, with the operator's reason and message."""
        text = self.phase + (f" ({self.job_status})" if self.job_status else "")
        if self.ray_cluster and self.is_live:
            text += f", Ray cluster {self.ray_cluster}"
        if self.num_failed and self.is_live:
            text += f", try {self.num_failed + 1} of {self.backoff_limit + 1}"
        if self.phase == "new" and self.created_s and time.time() - self.created_s > UNSEEN_S:
            return f"{text}: KubeRay has not taken it up; does its operator run and watch this namespace? (`opdctl doctor`)"
        return f"{text}: {self.why}" if self.why else text


def read_job(tree: Mapping[str, Any]) -> JobState:
    """Read the state of a RayJob object."""
    metadata, spec, status = tree["metadata"], tree["spec"], tree.get("status") or {}
    labels = metadata.get("labels", {})
    cluster = spec.get("rayClusterSpec") or {}
    workers = cluster.get("workerGroupSpecs") or []
    templates = [group.get("template", {}) for group in (cluster.get("headGroupSpec", {}), *workers)]
    graces = [template.get("spec", {}).get("terminationGracePeriodSeconds", 30) for template in templates]
    # The rest of a message is the end of the log, which the run's record and `opdctl logs` have.
    message = status.get("message", "").partition(", last available logs")[0].strip()
    return JobState(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        kind=labels.get(KIND_LABEL, ""),
        phase=_phase(metadata, status),
        job_status=status.get("jobStatus", ""),
        why=": ".join(filter(None, (status.get("reason"), message))),
        ray_cluster=status.get("rayClusterName", ""),
        queue=labels.get(QUEUE_LABEL, ""),
        num_failed=int(status.get("failed") or 0),
        backoff_limit=int(spec.get("backoffLimit") or 0),
        grace_s=float(max(graces)),
        started_s=unix_s(status.get("startTime")),
        created_s=unix_s(metadata.get("creationTimestamp")),
    )


def _phase(metadata: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    if metadata.get("deletionTimestamp"):
        return "deleting"
    deployment = status.get("jobDeploymentStatus", "")
    if deployment == "Complete":
        # KubeRay completes a job that Ray ended in any way; without a word from Ray the submitter failed.
        return _BY_JOB.get(status.get("jobStatus", ""), "failed")
    return _BY_DEPLOYMENT.get(deployment, "starting")


@dataclass(frozen=True, kw_only=True)
class ClusterRun:
    """A namespace's objects of a run; `job` is None after the RayJob is gone (release and ConfigMap remain).

    Attributes:
        experiment: the spec that the pods read; None where the run is not installed here.
    """

    job: JobState | None
    pods: list[PodLine] = field(default_factory=list)
    blockers: list[str] = field(default_factory=list)
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
        phase = self.job.describe() if self.job is not None else "RayJob is gone"
        return "; ".join([phase, *dict.fromkeys(reasons)])


def look(api: KubeApi, run_id: str) -> ClusterRun:
    """Read everything that the namespace holds of a run."""
    tree = api.find(api.path("rayjobs", run_id))
    experiment = _experiment(api.find(api.path("configmaps", run_id)), run_id)
    pods = api.list(api.path("pods"), selector=f"{RUN_LABEL}={run_id}")
    if tree is None:
        return ClusterRun(job=None, pods=pod_lines(pods), experiment=experiment)
    job = read_job(tree)
    events = sorted(api.list(api.path("events")), key=last_s)
    lines = pod_lines(pods, events)
    reasons = in_the_way(job, lines, events, workloads_of(api, job))
    return ClusterRun(job=job, pods=lines, blockers=reasons, experiment=experiment)


def experiments(api: KubeApi) -> dict[str, dict[str, Any]]:
    """Return the experiment of every run that is installed in the namespace."""
    configs = {item["metadata"]["name"]: item for item in api.list(api.path("configmaps"), selector=RUN_LABEL)}
    found = {run_id: _experiment(config, run_id) for run_id, config in configs.items()}
    return {run_id: experiment for run_id, experiment in found.items() if experiment is not None}


def _experiment(config: Tree | None, run_id: str) -> dict[str, Any] | None:
    """Return the experiment of a run's ConfigMap; None for another tool's ConfigMap of the same name."""
    labels = (config or {}).get("metadata", {}).get("labels", {})
    text = (config or {}).get("data", {}).get(EXPERIMENT_KEY)
    return json.loads(text) if text is not None and labels.get(RUN_LABEL) == run_id else None


def workloads_of(api: KubeApi, job: JobState) -> list[Tree]:
    """Read Kueue's objects of a run that it holds back; an empty list without the right to read them."""
    if not job.queue or job.phase != "suspended":
        return []
    with contextlib.suppress(ClusterError):
        return api.list(api.path("workloads"), selector=f"{_UID_LABEL}={job.uid}")
    return []


def in_the_way(
    job: JobState, pods: Sequence[PodLine], events: Sequence[Event], workloads: Sequence[Mapping[str, Any]] = ()
) -> list[str]:
    """Return the reasons why a live run's objects cannot be made, and what an ended run holds.

    No deletion rule matches a STOPPED job, and KubeRay never leaves ValidationFailed; both may hold a Ray cluster.
    """
    if job.phase == "suspended":
        return [_in_queue(job, workloads)] if job.queue else []
    there = [pod for pod in pods if pod.is_there]
    held = [pod for pod in there if pod.role in ("head", "worker", "teacher")]
    out = []
    if held and job.phase in ("stopped", "invalid"):
        num_gpus = sum(pod.num_gpus for pod in held)
        out = [
            f"{job.phase} WITH A LIVE CLUSTER: {len(held)} pods hold {num_gpus} GPUs; `opdctl cancel {job.name}` frees them"
        ]
    if not job.is_live and job.phase != "invalid":
        return out
    since_s = max([job.created_s, *(pod.created_s for pod in there)])
    return out + blockers(events, names=(job.name, job.ray_cluster), since_s=since_s)


def _in_queue(job: JobState, workloads: Sequence[Mapping[str, Any]]) -> str:
    """Return Kueue's own sentences about a run that waits in its queue."""
    text = f"suspended by Kueue: waits in queue {job.queue}"
    for workload in workloads:
        conditions = {item["type"]: item for item in workload.get("status", {}).get("conditions") or ()}
        reserved, evicted = conditions.get("QuotaReserved", {}), conditions.get("Evicted", {})
        if reserved.get("status") == "False" and reserved.get("message"):
            text += f": {reserved['message']}"
        if evicted.get("status") == "True":
            text += f"; it was evicted ({evicted.get('reason', '')}): {evicted.get('message', '')}"
    return text


def wait_until_gone(api: KubeApi, run_id: str, *, timeout_s: float) -> None:
    """Wait until RayJob and pods are gone."""
    until_s = time.monotonic() + timeout_s

    def see() -> bool | str:
        run = look(api, run_id)
        is_gone = run.job is None and not run.pods
        return is_gone or f"{run_id}: {len(run.pods)} pods are left; {run.describe()}"

    def pause() -> None:
        if time.monotonic() > until_s:
            fix = "the deletion continues: `opdctl status` shows it"
            raise ToolError(f"run {run_id} is not gone yet after {timeout_s:g} s", fix=fix)
        time.sleep(POLL_S)

    wait_until(see, pause=pause)
