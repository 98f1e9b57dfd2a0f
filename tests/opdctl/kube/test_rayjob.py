"""A RayJob's phase out of KubeRay's two status fields, and what is shouted about."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opdctl.kube.rayjob import alarms, read_job
from opdctl.kube.waiting import pod_lines


@pytest.mark.parametrize(
    ("deployment", "job", "phase", "is_live"),
    [
        ("", "", "new", True),
        ("Initializing", "", "starting", True),
        ("Running", "PENDING", "running", True),
        ("Running", "RUNNING", "running", True),
        ("Retrying", "FAILED", "retrying", True),
        ("Suspending", "RUNNING", "suspending", True),
        ("Suspended", "", "suspended", True),
        ("Complete", "SUCCEEDED", "succeeded", False),
        ("Complete", "STOPPED", "stopped", False),
        ("Complete", "", "failed", False),
        ("Failed", "FAILED", "failed", False),
        ("Failed", "RUNNING", "failed", False),
        ("ValidationFailed", "RUNNING", "invalid", False),
    ],
)
def test_the_phase_follows_from_both_status_fields(
    deployment: str, job: str, phase: str, is_live: bool, rayjob: Callable
) -> None:
    state = read_job(rayjob(jobDeploymentStatus=deployment, jobStatus=job))
    assert (state.phase, state.is_live) == (phase, is_live)


def test_a_job_that_is_being_deleted_is_live_until_it_is_gone(rayjob: Callable) -> None:
    state = read_job(rayjob(deleting=True, jobDeploymentStatus="Complete", jobStatus="SUCCEEDED"))
    assert (state.phase, state.is_live) == ("deleting", True)


def test_a_job_without_a_status_is_new(rayjob: Callable) -> None:
    tree = rayjob()
    del tree["status"]
    assert read_job(tree).phase == "new"


def test_the_try_is_one_more_than_what_failed(rayjob: Callable) -> None:
    text = read_job(
        rayjob(jobDeploymentStatus="Running", jobStatus="RUNNING", failed=1, rayClusterName="r-abc")
    ).describe()
    assert text == "running (RUNNING), Ray cluster r-abc, try 2 of 4"


def test_the_operators_reason_and_message_are_told(rayjob: Callable) -> None:
    job = read_job(rayjob(jobDeploymentStatus="Failed", reason="DeadlineExceeded", message="The RayJob has passed the deadline."))  # fmt: skip
    assert job.describe() == "failed: DeadlineExceeded: The RayJob has passed the deadline."


def test_only_a_run_without_deletion_rules_may_be_suspended(rayjob: Callable) -> None:
    assert read_job(rayjob(suspendable=True)).is_suspendable
    assert not read_job(rayjob()).is_suspendable


def test_the_grace_is_the_longest_of_all_pod_templates(rayjob: Callable) -> None:
    tree = rayjob()
    tree["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"] = {"spec": {"terminationGracePeriodSeconds": 900}}
    assert read_job(tree).grace_s == 900


@pytest.mark.parametrize(("deployment", "job"), [("Complete", "STOPPED"), ("ValidationFailed", "RUNNING")])
def test_a_run_that_nobody_cleans_up_is_shouted_with_what_it_holds(
    deployment: str, job: str, rayjob: Callable, pod: Callable
) -> None:
    state = read_job(rayjob(jobDeploymentStatus=deployment, jobStatus=job))
    lines = pod_lines([pod("head"), pod("worker", name="w0", gpus=8), pod("worker", name="w1", gpus=8)], [])
    [alarm] = alarms(state, lines)
    assert "3 pods and 16 GPUs" in alarm
    assert "opdctl cancel r" in alarm


def test_nothing_is_shouted_once_the_cluster_is_gone(rayjob: Callable, pod: Callable) -> None:
    stopped = read_job(rayjob(jobDeploymentStatus="Complete", jobStatus="STOPPED"))
    assert alarms(stopped, pod_lines([pod("submitter", phase="Succeeded")], [])) == []


def test_a_stopped_run_with_a_time_limit_frees_itself(rayjob: Callable, pod: Callable) -> None:
    stopped = read_job(rayjob(suspendable=True, jobDeploymentStatus="Complete", jobStatus="STOPPED"))
    assert alarms(stopped, pod_lines([pod("head")], [])) == []
