"""Reads a RayJob: one phase out of KubeRay's two status fields, and the alarms that `status` shows first.

Field names and values are those of KubeRay 1.6.1's RayJobStatus. `jobStatus` is Ray's word for the job,
`jobDeploymentStatus` the operator's for everything around it; neither alone says how a run stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from opdctl.kube.client import KIND_LABEL, unix_s
from opdctl.kube.waiting import PodLine

Phase = Literal[
    "new", "starting", "running", "retrying", "suspending", "suspended", "deleting", "succeeded", "failed", "stopped",
    "invalid",
]  # fmt: skip
# Phases in which KubeRay goes on by itself, or will once it is let.
LIVE: tuple[Phase, ...] = ("new", "starting", "running", "retrying", "suspending", "suspended", "deleting")
_BY_DEPLOYMENT: dict[str, Phase] = {
    "": "new",
    "Initializing": "starting",
    "Waiting": "starting",
    "Running": "running",
    "Retrying": "retrying",
    "Suspending": "suspending",
    "Suspended": "suspended",
    "Failed": "failed",
    "ValidationFailed": "invalid",
}
_BY_JOB: dict[str, Phase] = {"SUCCEEDED": "succeeded", "FAILED": "failed", "STOPPED": "stopped"}


@dataclass(frozen=True, kw_only=True)
class JobState:
    """One RayJob."""

    name: str
    uid: str
    kind: str
    """Of the experiment, by the label `opd/kind`; empty where there is none."""
    phase: Phase
    deployment_status: str
    job_status: str
    reason: str
    message: str
    ray_cluster: str
    """Name of its RayCluster; empty before there is one and after a suspend."""
    submission_mode: str
    is_suspendable: bool
    """Whether `spec.suspend` may be set: KubeRay parks a RayJob with deletion rules as ValidationFailed for good."""
    queue: str
    num_failed: int
    backoff_limit: int
    num_workers: int
    grace_s: float
    """The longest termination grace of its pods, seconds: what a save may take."""
    started_s: float
    ended_s: float
    created_s: float

    @property
    def is_live(self) -> bool:
        return self.phase in LIVE

    def describe(self) -> str:
        """`running (RUNNING), Ray cluster r-x7k2p, try 2 of 4`."""
        text = self.phase + (f" ({self.job_status})" if self.job_status else "")
        if self.ray_cluster and self.is_live:
            text += f", Ray cluster {self.ray_cluster}"
        if self.num_failed and self.is_live:
            text += f", try {self.num_failed + 1} of {self.backoff_limit + 1}"
        why = ": ".join(part for part in (self.reason, self.message.strip()) if part)
        return f"{text}: {why}" if why else text


def read_job(tree: Mapping[str, Any]) -> JobState:
    """The state of a RayJob object."""
    metadata, spec, status = tree["metadata"], tree["spec"], tree.get("status") or {}
    labels = metadata.get("labels", {})
    cluster = spec.get("rayClusterSpec") or {}
    workers = cluster.get("workerGroupSpecs") or []
    templates = [
        cluster.get("headGroupSpec", {}).get("template", {}),
        *(group.get("template", {}) for group in workers),
    ]
    graces = [template.get("spec", {}).get("terminationGracePeriodSeconds", 30) for template in templates]
    return JobState(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        kind=labels.get(KIND_LABEL, ""),
        phase=_phase(metadata, status),
        deployment_status=status.get("jobDeploymentStatus", ""),
        job_status=status.get("jobStatus", ""),
        reason=status.get("reason", ""),
        message=status.get("message", ""),
        ray_cluster=status.get("rayClusterName", ""),
        submission_mode=spec.get("submissionMode", "K8sJobMode"),
        is_suspendable=bool(spec.get("shutdownAfterJobFinishes")) and not _rules(spec),
        queue=labels.get("kueue.x-k8s.io/queue-name", ""),
        num_failed=int(status.get("failed") or 0),
        backoff_limit=int(spec.get("backoffLimit") or 0),
        num_workers=sum(int(group.get("replicas") or 0) for group in workers),
        grace_s=float(max(graces)),
        started_s=unix_s(status.get("startTime")),
        ended_s=unix_s(status.get("endTime")),
        created_s=unix_s(metadata.get("creationTimestamp")),
    )


def _rules(spec: Mapping[str, Any]) -> Sequence[Any]:
    return (spec.get("deletionStrategy") or {}).get("deletionRules") or ()


def _phase(metadata: Mapping[str, Any], status: Mapping[str, Any]) -> Phase:
    if metadata.get("deletionTimestamp"):
        return "deleting"
    deployment = status.get("jobDeploymentStatus", "")
    if deployment == "Complete":
        # KubeRay completes a job that Ray ended in any way; without a word from Ray it is the submitter that failed.
        return _BY_JOB.get(status.get("jobStatus", ""), "failed")
    return _BY_DEPLOYMENT.get(deployment, "starting")


def alarms(job: JobState, pods: Sequence[PodLine]) -> list[str]:
    """What a person must act on: resources that nobody will free.

    A STOPPED job is Complete, which no deletion rule of ours matches; ValidationFailed is a state that no code path
    leaves. Either may hold a whole Ray cluster.
    """
    held = [pod for pod in pods if pod.is_there and pod.role in ("head", "worker")]
    if not held or job.phase not in ("stopped", "invalid"):
        return []
    if job.phase == "stopped" and job.is_suspendable:
        return []  # its time limit frees it
    num_gpus = sum(pod.num_gpus for pod in held)
    what = "STOPPED" if job.phase == "stopped" else "ValidationFailed"
    cause = (
        "no deletion rule matches a stopped job" if job.phase == "stopped" else "KubeRay no longer looks after this RayJob"
    )  # fmt: skip
    return [
        f"{what} WITH A LIVE CLUSTER: {len(held)} pods and {num_gpus} GPUs are held, and {cause}; "
        f"free them with: opdctl cancel {job.name}"
    ]
