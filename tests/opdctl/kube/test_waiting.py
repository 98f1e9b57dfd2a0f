"""Why a pod does not run, and why one was never made."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from opdctl.commands.status import View
from opdctl.kube.client import KubeApi
from opdctl.kube.rayjob import read_job
from opdctl.kube.run import ClusterRun, in_the_way
from opdctl.kube.waiting import pod_lines, read_events, why
from opdctl.runs.places import Found

QUOTA = (
    'Failed to create worker Pod for the cluster opd/r-abc, pods "r-abc-worker" is forbidden: exceeded quota: opd, '
    "requested: requests.nvidia.com/gpu=8, used: requests.nvidia.com/gpu=28, limited: requests.nvidia.com/gpu=32"
)


def waiting(reason: str, message: str = "", **more: object) -> dict:
    status = {
        "name": "ray",
        "image": "registry.example/opd@sha256:1",
        "state": {"waiting": {"reason": reason, "message": message}},
    }
    return {"phase": "Pending", "containerStatuses": [status | more]}


def terminated(code: int, reason: str) -> dict:
    return {"name": "ray", "state": {"terminated": {"exitCode": code, "reason": reason}}}


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"])
def test_an_image_that_cannot_be_pulled_is_named(reason: str, pod: Callable) -> None:
    text = why(pod(**waiting(reason, "not found")), [])
    assert text == f"image pull: {reason} of registry.example/opd@sha256:1: not found"


def test_an_unschedulable_pod_gives_the_schedulers_words(pod: Callable) -> None:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/6 nodes are available",
    }
    assert why(pod(node="", phase="Pending", conditions=[condition]), []) == "unschedulable: 0/6 nodes are available"


def test_a_container_that_crashes_tells_how_it_ended_last(pod: Callable) -> None:
    text = why(pod(**waiting("CrashLoopBackOff", lastState=terminated(137, "OOMKilled")["state"])), [])
    assert "OOMKilled" in text
    assert "memory limit" in text


def test_a_volume_that_cannot_be_mounted_is_told_by_its_event(pod: Callable, event: Callable) -> None:
    events = read_events([event("Pod", "r-worker", "FailedMount", "claim models is not bound")])
    assert why(pod(**waiting("ContainerCreating")), events) == "FailedMount: claim models is not bound"


def test_a_pod_that_goes_waits_for_the_save(pod: Callable) -> None:
    tree = pod(deleting=True)
    assert why(tree, []) == "terminating"
    tree["metadata"]["deletionGracePeriodSeconds"] = 360
    assert why(tree, []) == "terminating: it has up to 360 s, in which the trainer saves"


def test_a_used_up_quota_is_told_while_workers_are_missing(rayjob: Callable, pod: Callable, event: Callable) -> None:
    job = read_job(rayjob(jobDeploymentStatus="Initializing", rayClusterName="r-abc"))
    events = read_events([event("RayCluster", "r-abc", "FailedToCreateWorkerPod", QUOTA)])
    [reason] = in_the_way(job, pod_lines([pod("head"), pod("worker")], []), events)
    assert reason.startswith("quota opd is used up: requested: requests.nvidia.com/gpu=8")
    both = pod_lines([pod("head"), pod("worker", name="w0"), pod("worker", name="w1")], [])
    assert in_the_way(job, both, events) == []


def test_the_newest_word_about_a_failure_counts(rayjob: Callable, event: Callable) -> None:
    job = read_job(rayjob(jobDeploymentStatus="Initializing", rayClusterName="r-abc"))
    later = event("RayCluster", "r-abc", "FailedToCreateHeadPod", "second", at="2026-11-21T10:09:00Z")
    first = event("RayCluster", "r-abc", "FailedToCreateHeadPod", "first")
    assert in_the_way(job, [], read_events([later, first])) == ["second"]


def test_pod_security_is_named_where_it_refuses(rayjob: Callable, event: Callable) -> None:
    job = read_job(rayjob(jobDeploymentStatus="Initializing", rayClusterName="r-abc"))
    message = 'pods "r" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true'
    [reason] = in_the_way(job, [], read_events([event("RayCluster", "r-abc", "FailedToCreateHeadPod", message)]))
    assert reason == "Pod Security restricted:latest of this namespace rejects the pod: runAsNonRoot != true"


def test_a_run_in_kueues_queue_says_what_it_waits_for_and_who_took_its_place(rayjob: Callable) -> None:
    job = read_job(rayjob(suspendable=True, suspend=True, queue="team", jobDeploymentStatus="Suspended"))
    assert in_the_way(job, [], []) == ["suspended by Kueue: waits in queue team"]
    reserved = {
        "type": "QuotaReserved",
        "status": "False",
        "message": "insufficient unused quota for cpu, 8 more needed",
    }
    evicted = {
        "type": "Evicted",
        "status": "True",
        "reason": "Preempted",
        "message": "for a workload of higher priority",
    }
    workload = {"status": {"conditions": [evicted, reserved]}}
    assert in_the_way(job, [], [], [workload]) == [
        "suspended by Kueue: waits in queue team: insufficient unused quota for cpu, 8 more needed; "
        "it was evicted (Preempted): for a workload of higher priority"
    ]


def test_status_tells_programs_what_the_cluster_holds(rayjob: Callable, pod: Callable) -> None:
    seen = ClusterRun(
        job=read_job(rayjob(jobDeploymentStatus="Running", jobStatus="RUNNING")),
        pods=pod_lines([pod(gpus=8)], []),
        blockers=["quota opd is used up"],
        experiment={"kind": "opd"},
    )
    found = Found(
        run_id="r", api=KubeApi(None, namespace="opd", context=None), in_cluster=seen, place=None, notes=["n"]
    )
    view = View(found=found, attempts=[], places={})
    told = json.loads(json.dumps(view.to_json()))
    assert told["store"] is None
    assert (told["cluster"]["namespace"], told["cluster"]["job"]["phase"]) == ("opd", "running")
    assert [(item["name"], item["num_gpus"]) for item in told["cluster"]["pods"]] == [("r-worker", 8)]
    assert told["cluster"]["in_the_way"] == ["quota opd is used up"]
