"""A RayJob's phase out of KubeRay's two status fields, and what is shouted about."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from opdctl.kube.rayjob import in_the_way, read_job
from opdctl.kube.waiting import pod_lines


@pytest.mark.parametrize(
    ("deployment", "job", "phase", "is_live"),
    [
        ("", "", "new", True), ("Initializing", "", "starting", True), ("Running", "PENDING", "running", True),
        ("Retrying", "FAILED", "retrying", True), ("Suspending", "RUNNING", "suspending", True), ("Suspended", "", "suspended", True),
        ("Complete", "SUCCEEDED", "succeeded", False), ("Complete", "STOPPED", "stopped", False), ("Complete", "", "failed", False),
        ("Failed", "RUNNING", "failed", False), ("ValidationFailed", "RUNNING", "invalid", False),
    ],
)  # fmt: skip
def test_the_phase_follows_from_both_status_fields(
    deployment: str, job: str, phase: str, is_live: bool, rayjob: Callable
) -> None:
    state = read_job(rayjob(jobDeploymentStatus=deployment, jobStatus=job, failed=1, rayClusterName="r-abc"))
    assert (state.phase, state.is_live) == (phase, is_live)
    assert ("Ray cluster r-abc, try 2 of 4" in state.describe()) == is_live


@pytest.mark.parametrize(("deployment", "job"), [("Complete", "STOPPED"), ("ValidationFailed", "RUNNING")])
def test_an_ended_run_that_no_rule_cleans_up_is_shown_with_what_it_holds(
    deployment: str, job: str, rayjob: Callable, pod: Callable
) -> None:
    state = read_job(rayjob(jobDeploymentStatus=deployment, jobStatus=job))
    lines = pod_lines([pod("head"), pod("worker", name="w0", gpus=8), pod("worker", name="w1", gpus=8)], [])
    [alarm] = in_the_way(state, lines, [])
    assert "3 pods hold 16 GPUs" in alarm
    assert "opdctl cancel r" in alarm


def test_a_rayjob_that_no_operator_takes_up_is_named_so_after_a_minute(rayjob: Callable) -> None:
    tree = rayjob()
    assert "new: KubeRay has not taken it up" in read_job(tree).describe()
    tree["metadata"]["creationTimestamp"] = datetime.now(UTC).isoformat()
    assert read_job(tree).describe() == "new"
