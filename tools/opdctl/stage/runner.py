"""Runs a staging Job: one at a time for the same work, followed to its end."""

from __future__ import annotations

import time

from opdctl.console import note
from opdctl.errors import ToolError
from opdctl.kube.client import KubeApi, Tree
from opdctl.kube.errors import HTTP_NOT_FOUND, ClusterError
from opdctl.kube.events import blockers, read_events
from opdctl.kube.podlogs import LogPod, PodLog
from opdctl.kube.times import unix_s
from opdctl.kube.waiting import why
from opdctl.redact import redact
from opdctl.stage.job import Staging, claim, job, job_end, policy

POLL_S = 2.0
POLICIES = "/apis/networking.k8s.io/v1/namespaces"


def start(api: KubeApi, staging: Staging, *, new_claim_size: str | None) -> bool:
    """Makes claim (where asked), Job and policy; False if the same work is already being done.

    Raises:
        ToolError: there is no such claim, or the API server refuses.
    """
    path = api.path("persistentvolumeclaims", staging.claim)
    if api.find(path) is None:
        if new_claim_size is None:
            raise ToolError(
                f"claim {staging.claim} is not in namespace {api.namespace}",
                fix="make it, apply manifests/cluster with components/claims, or let --create-claim SIZE make it",
            )
        api.create(api.path("persistentvolumeclaims"), claim(staging.claim, size=new_claim_size))
        note(f"claim {staging.claim} of {new_claim_size} created")
    before = api.find(api.path("jobs", staging.job_name))
    if before is not None and job_end(before) is None and "deletionTimestamp" not in before["metadata"]:
        return False
    if before is not None:  # it ended: what is there is not fetched again, what has changed is
        api.delete(api.path("jobs", staging.job_name))
        _wait_until_gone(api, staging.job_name)
    made = api.create(api.path("jobs"), job(staging))
    api.create(f"{POLICIES}/{api.namespace}/networkpolicies", policy(staging, job_uid=made["metadata"]["uid"]))
    return True


def follow(api: KubeApi, staging: Staging, *, timeout_s: float) -> bool:
    """Prints the Job's log until it has ended; whether it ended well.

    Raises:
        ToolError: it took longer; it goes on by itself.
    """
    deadline_s = time.monotonic() + timeout_s
    logs: dict[str, PodLog] = {}
    told = unread = ""
    while time.monotonic() < deadline_s:
        tree = api.find(api.path("jobs", staging.job_name))
        if tree is None:
            raise ToolError(f"Job {staging.job_name} was deleted while it ran")
        pods = api.list(api.path("pods"), selector=f"job-name={staging.job_name}")
        problem = "; ".join(filter(None, [_print_new(api, pod, logs) for pod in pods]))
        if problem and problem != unread:
            note(f"warning: {problem}")
        unread = problem
        end = job_end(tree)
        if end is not None:
            return end
        events = read_events(api.list(api.path("events")))
        since_s = unix_s(tree["metadata"].get("creationTimestamp"))
        reasons = [reason for pod in pods if (reason := why(pod, events))] or (
            [] if pods else blockers(events, names=[staging.job_name], since_s=since_s)
        )
        text = "; ".join(dict.fromkeys(reasons))
        if text and text != told:
            note(f"{staging.job_name}: {text}")
        told = text
        time.sleep(POLL_S)
    raise ToolError(
        f"Job {staging.job_name} has not ended after {timeout_s:g} s",
        fix="it goes on by itself; the same command follows it again, --timeout waits longer",
    )


def _print_new(api: KubeApi, pod: Tree, logs: dict[str, PodLog]) -> str:
    """Prints what is new in a pod's log; returns why it cannot be read, empty where it can."""
    name = pod["metadata"]["name"]
    phase = pod.get("status", {}).get("phase")
    if phase not in ("Running", "Succeeded", "Failed"):
        return ""
    seen = LogPod(name=name, container="stage", created_s=0.0, has_started=True, is_over=phase != "Running")
    try:
        for line in logs.setdefault(name, PodLog(api, seen)).lines(follow=False):
            print(redact(line))
    except ClusterError as error:
        if error.status not in (HTTP_NOT_FOUND, 400):  # gone, or its container has not started
            return f"its log cannot be read: {error}"
    return ""


def _wait_until_gone(api: KubeApi, name: str) -> None:
    while api.find(api.path("jobs", name)) is not None:
        time.sleep(POLL_S / 4)
