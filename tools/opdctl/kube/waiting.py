"""Explains why a pod is not running (image, scheduling, volumes, secrets, crashes), in words that say what to mend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from opdctl.kube.client import ROLE_LABEL
from opdctl.kube.events import Event, of_object
from opdctl.kube.times import unix_s

IMAGE_REASONS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError",
                 "RegistryUnavailable")  # fmt: skip
CONFIG_REASONS = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
# What the kubelet reports while a container is being created; the last one of them is the reason.
NODE_EVENTS = ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox", "FailedMapVolume", "Failed")


@dataclass(frozen=True, kw_only=True)
class PodLine:
    """One pod of a run; `why` is empty where it runs as it should."""

    name: str
    role: str
    node: str
    phase: str
    why: str
    num_restarts: int
    num_gpus: int
    created_s: float

    @property
    def is_there(self) -> bool:
        """Whether it holds resources: it has neither ended nor is it still to be placed."""
        return self.phase in ("Pending", "Running", "Unknown")


def pod_lines(pods: Iterable[Mapping[str, Any]], events: Iterable[Event]) -> list[PodLine]:
    """Every pod, head first, then workers and submitters, each by age."""
    known = list(events)
    order = {"head": 0, "worker": 1, "submitter": 2}
    lines = [_line(pod, known) for pod in pods]
    return sorted(lines, key=lambda line: (order.get(line.role, 3), line.created_s, line.name))


def _line(pod: Mapping[str, Any], events: list[Event]) -> PodLine:
    metadata, spec, status = pod["metadata"], pod.get("spec", {}), pod.get("status", {})
    return PodLine(
        name=metadata["name"],
        role=metadata.get("labels", {}).get(ROLE_LABEL, "?"),
        node=spec.get("nodeName", ""),
        phase=status.get("phase", "Pending"),
        why=why(pod, events),
        num_restarts=sum(int(item.get("restartCount", 0)) for item in status.get("containerStatuses", [])),
        num_gpus=sum(_num_gpus(container) for container in spec.get("containers", [])),
        created_s=unix_s(metadata.get("creationTimestamp")),
    )


def why(pod: Mapping[str, Any], events: Iterable[Event]) -> str:
    """Why a pod does not run, empty where it does or ended well."""
    status = pod.get("status", {})
    if pod["metadata"].get("deletionTimestamp"):
        return "is being deleted: its preStop hook waits for the trainer to save"
    if status.get("reason") in ("Evicted", "Preempting", "NodeLost", "Terminated"):
        return f"{status['reason'].lower()}: {status.get('message', '')}".rstrip(": ")
    phase = status.get("phase", "Pending")
    if phase == "Pending" and not pod.get("spec", {}).get("nodeName"):
        return _not_placed(status)
    return _container_reason(pod, list(events))


def _not_placed(status: Mapping[str, Any]) -> str:
    placed: Mapping[str, Any] = next(
        (item for item in status.get("conditions", []) if item["type"] == "PodScheduled"), {}
    )
    if placed.get("reason") == "SchedulingGated":
        return "waits in its queue: a scheduling gate holds it"
    if placed.get("reason") == "Unschedulable":
        return f"unschedulable: {placed.get('message', '')}"
    return "waits for the scheduler"


def _container_reason(pod: Mapping[str, Any], events: list[Event]) -> str:
    status = pod.get("status", {})
    for item in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        is_init = item in status.get("initContainerStatuses", [])
        state = item.get("state", {})
        found = _waiting(item, state["waiting"], pod, events) if "waiting" in state else ""
        if "terminated" in state and state["terminated"].get("exitCode", 0) != 0:
            found = _ended(item["name"], state["terminated"])
        if is_init and "running" in state:
            found = f"init container {item['name']} is running" + (
                " (it waits for the head)" if item["name"] == "wait-gcs-ready" else ""
            )
        if found:
            return found
    return "" if status.get("phase") != "Pending" else _node_event(pod, events) or "its containers are being created"


def _waiting(item: Mapping[str, Any], waiting: Mapping[str, Any], pod: Mapping[str, Any], events: list[Event]) -> str:
    reason, message = waiting.get("reason", ""), waiting.get("message", "")
    if reason in IMAGE_REASONS:
        return f"image pull: {reason} of {item.get('image', '?')}: {message}".rstrip(": ")
    if reason in CONFIG_REASONS:
        return f"container {item['name']} cannot be made: {message or reason}"
    if reason == "CrashLoopBackOff":
        last = item.get("lastState", {}).get("terminated")
        return f"crashes again and again: {_ended(item['name'], last) if last else message}"
    if reason in ("PodInitializing", "ContainerCreating"):
        return _node_event(pod, events)
    return f"container {item['name']} waits: {reason} {message}".strip()


def _ended(container: str, terminated: Mapping[str, Any]) -> str:
    code, reason = terminated.get("exitCode"), terminated.get("reason", "")
    if reason == "OOMKilled":
        return f"container {container} was killed at its memory limit (OOMKilled): raise the limit or lower the load"
    message = f": {terminated['message']}" if terminated.get("message") else ""
    return f"container {container} ended with exit code {code} ({reason}){message}"


def _node_event(pod: Mapping[str, Any], events: list[Event]) -> str:
    found = [event for event in of_object(events, "Pod", pod["metadata"]["name"]) if event.reason in NODE_EVENTS]
    return f"{found[-1].reason}: {found[-1].message}" if found else ""


def _num_gpus(container: Mapping[str, Any]) -> int:
    limits = container.get("resources", {}).get("limits", {})
    return sum(int(count) for name, count in limits.items() if name.endswith("/gpu"))
