"""Why a pod does not run, and why an object was never made."""

from collections.abc import Callable

import pytest

from opdctl.kube.rayjob import in_the_way, read_job
from opdctl.kube.waiting import last_s, pod_lines, why

QUOTA = 'pods "r-abc-worker" is forbidden: exceeded quota: opd, requested: requests.nvidia.com/gpu=8'


def waiting(reason: str, message: str = "", **more: object) -> dict:
    status = {"name": "ray", "state": {"waiting": {"reason": reason, "message": message}}}
    return {"phase": "Pending", "containerStatuses": [status | more]}


OUT_OF_MEMORY = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
UNSCHEDULABLE = {"type": "PodScheduled", "reason": "Unschedulable", "message": "0/6 nodes are available"}


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (waiting("ErrImagePull", "not found"), "container ray: ErrImagePull: not found"),
        (waiting("CrashLoopBackOff", lastState=OUT_OF_MEMORY), "exit code 137 (OOMKilled): raise its memory limit"),
        (waiting("ContainerCreating"), "FailedMount: claim models is not bound"),
        ({"phase": "Pending", "conditions": [UNSCHEDULABLE]}, "Unschedulable: 0/6 nodes are available"),
        ({"phase": "Failed", "reason": "Evicted", "message": "disk"}, "Evicted: disk"),
        ({"phase": "Running"}, ""),
    ],
)
def test_the_reason_is_the_kubelet_s_or_the_scheduler_s_own_sentence(
    status: dict, words: str, pod: Callable, event: Callable
) -> None:
    tree = pod(node="" if "conditions" in status else "n1", **status)
    found = why(tree, [event("Pod", "r-worker", "FailedMount", "claim models is not bound")])
    assert words in found
    assert bool(found) == bool(words)


def test_a_pod_that_goes_is_terminating(pod: Callable) -> None:
    tree = pod()
    tree["metadata"]["deletionTimestamp"] = "2026-11-21T11:00:00Z"
    assert why(tree, []) == "terminating"
    tree["metadata"]["deletionGracePeriodSeconds"] = 360
    assert why(tree, []) == "terminating: it ends within 360 s"


def test_a_used_up_quota_is_shown_until_the_missing_pod_is_there(
    rayjob: Callable, pod: Callable, event: Callable
) -> None:
    job = read_job(rayjob(jobDeploymentStatus="Initializing", rayClusterName="r-abc"))
    first = event("RayCluster", "r-abc", "FailedToCreateWorkerPod", "first", at="2026-11-21T10:03:00Z")
    events = sorted([event("RayCluster", "r-abc", "FailedToCreateWorkerPod", QUOTA), first], key=last_s)
    assert in_the_way(job, pod_lines([pod("head")]), events) == [QUOTA], "the newest message counts"
    later = pod("worker", name="w1")
    later["metadata"]["creationTimestamp"] = "2026-11-21T10:06:00Z"
    assert in_the_way(job, pod_lines([pod("head"), later]), events) == []


def test_a_run_in_kueues_queue_says_what_it_waits_for_and_who_took_its_place(rayjob: Callable) -> None:
    job = read_job(rayjob(queue="team", jobDeploymentStatus="Suspended"))
    assert in_the_way(job, [], []) == ["suspended by Kueue: waits in queue team"]
    reserved = {"type": "QuotaReserved", "status": "False", "message": "insufficient unused quota for cpu"}
    evicted = {"type": "Evicted", "status": "True", "reason": "Preempted", "message": "of a higher priority"}
    assert in_the_way(job, [], [], [{"status": {"conditions": [evicted, reserved]}}]) == [
        "suspended by Kueue: waits in queue team: insufficient unused quota for cpu; "
        "it was evicted (Preempted): of a higher priority"
    ]
