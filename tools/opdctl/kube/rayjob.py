"""A RayJob's state: one phase out of KubeRay's two status fields, and the alarms that `status` shows first.

Field names and values come from KubeRay 1.6.1's RayJobStatus. `jobStatus` is Ray's word for the job,
`jobDeploymentStatus` the operator's word for everything around it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from opdctl.kube.client import KIND_LABEL, unix_s
from opdctl.kube.waiting import PodLine

Phase = Literal[
    "new", "starting", "running", "retrying", "suspending", "suspended", "deleting", "succeeded", "failed", "stopped",
    "invalid",
]  # fmt: skip
# Phases that KubeRay leaves by itself, or after a resume.
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
# An operator that runs takes up a RayJob within seconds.
UNSEEN_S = 60.0


@dataclass(frozen=True, kw_only=True)
class JobState:
    """One RayJob.

    Attributes:
        kind: the experiment's, by the label `opd/kind`; empty without one.
        ray_cluster: name of its RayCluster; empty before there is one and after a suspend.
        is_suspendable: `spec.suspend` may be set; KubeRay parks a RayJob with deletion rules as ValidationFailed.
        grace_s: the longest termination grace of its pods, seconds: the time for a save.
    """

    name: str
    uid: str
    kind: str
    phase: Phase
    deployment_status: str
    job_status: str
    reason: str
    message: str
    ray_cluster: str
    submission_mode: str
    is_suspendable: bool
    queue: str
    num_failed: int
    backoff_limit: int
    num_workers: int
    grace_s: float
    started_s: float
    ended_s: float
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
        why = ": ".join(part for part in (self.reason, self.message.strip()) if part)
        return f"{text}: {why}" if why else text


def read_job(tree: Mapping[str, Any]) -> JobState:
    """Read the state of a RayJob object."""
    metadata, spec, status = tree["metadata"], tree["spec"], tree.get("status") or {}
    labels = metadata.get("labels", {})
    cluster = spec.get("rayClusterSpec") or {}
    workers = cluster.get("workerGroupSpecs") or []
    templates = [group.get("template", {}) for group in (cluster.get("headGroupSpec", {}), *workers)]
    graces = [template.get("spec", {}).get("terminationGracePeriodSeconds", 30) for template in templates]
    has_rules = bool((spec.get("deletionStrategy") or {}).get("deletionRules"))
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
        is_suspendable=bool(spec.get("shutdownAfterJobFinishes")) and not has_rules,
        queue=labels.get("kueue.x-k8s.io/queue-name", ""),
        num_failed=int(status.get("failed") or 0),
        backoff_limit=int(spec.get("backoffLimit") or 0),
        num_workers=sum(int(group.get("replicas") or 0) for group in workers),
        grace_s=float(max(graces)),
        started_s=unix_s(status.get("startTime")),
        ended_s=unix_s(status.get("endTime")),
        created_s=unix_s(metadata.get("creationTimestamp")),
    )


def _phase(metadata: Mapping[str, Any], status: Mapping[str, Any]) -> Phase:
    if metadata.get("deletionTimestamp"):
        return "deleting"
    deployment = status.get("jobDeploymentStatus", "")
    if deployment == "Complete":
        # KubeRay completes a job that Ray ended in any way; without a word from Ray the submitter failed.
        return _BY_JOB.get(status.get("jobStatus", ""), "failed")
    return _BY_DEPLOYMENT.get(deployment, "starting")


def alarms(job: JobState, pods: Sequence[PodLine]) -> list[str]:
    """Return what a user must free by hand.

    No deletion rule of ours matches a STOPPED job, and KubeRay never leaves ValidationFailed; both may hold a Ray cluster.
    """
    held = [pod for pod in pods if pod.is_there and pod.role in ("head", "worker")]
    is_freed = job.phase == "stopped" and job.is_suspendable  # by its time limit
    if not held or job.phase not in ("stopped", "invalid") or is_freed:
        return []
    num_gpus = sum(pod.num_gpus for pod in held)
    what, cause = {
        "stopped": ("STOPPED", "no deletion rule matches a stopped job"),
        "invalid": ("ValidationFailed", "KubeRay no longer looks after this RayJob"),
    }[job.phase]
    return [
        f"{what} WITH A LIVE CLUSTER: {len(held)} pods and {num_gpus} GPUs are held, and {cause}; "
        f"free them with: opdctl cancel {job.name}"
    ]
