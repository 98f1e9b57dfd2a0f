"""Reasons why objects of a run are missing and pods do not run, from events and the pods' states."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from opdctl.kube.client import ROLE_LABEL, unix_s

# Failures of KubeRay, Kubernetes' Job controller or Kueue to create an object; the message has the reason.
FAILED_CREATION = re.compile(r"^(FailedToCreate\w+|FailedCreate|InvalidRayJob\w+|InvalidRayCluster\w+)$")
_QUOTA = re.compile(r"exceeded quota: (?P<name>\S+?), (?P<rest>requested: .*)$")
_POD_SECURITY = re.compile(r'violates PodSecurity "(?P<level>[^"]+)": (?P<rest>.*)$')


@dataclass(frozen=True, kw_only=True)
class Event:
    """One event; `last_s` is the time of its last occurrence, Unix seconds."""

    kind: str
    name: str
    is_warning: bool
    reason: str
    message: str
    last_s: float


def read_events(objects: Iterable[Mapping[str, Any]]) -> list[Event]:
    """Read core events (v1), oldest first; events of the newer API have their times in other fields."""
    found = [
        Event(
            kind=str(tree.get("involvedObject", {}).get("kind", "")),
            name=str(tree.get("involvedObject", {}).get("name", "")),
            is_warning=tree.get("type") == "Warning",
            reason=str(tree.get("reason", "")),
            message=str(tree.get("message", "")),
            last_s=max(
                unix_s((tree.get("series") or {}).get("lastObservedTime")),
                unix_s(tree.get("lastTimestamp")),
                unix_s(tree.get("eventTime")),
                unix_s(tree.get("metadata", {}).get("creationTimestamp")),
            ),
        )
        for tree in objects
    ]
    return sorted(found, key=lambda event: event.last_s)


def blockers(
    events: Iterable[Event], *, names: Iterable[str], since_s: float, overcome: Iterable[str] = ()
) -> list[str]:
    """Return one line for each kind of failure to create the run's objects: its newest message.

    Args:
        names: the run's RayJob, RayClusters and submitter Job.
        since_s: older events belong to an earlier run of this name.
        overcome: reasons whose objects exist by now.
    """
    wanted, past = set(names), set(overcome)
    latest: dict[tuple[str, str], str] = {}
    for event in events:
        is_relevant = event.name in wanted and event.is_warning and event.last_s >= since_s
        if is_relevant and event.reason not in past and FAILED_CREATION.match(event.reason):
            latest[event.kind, event.reason] = explain(event.message)
    return list(dict.fromkeys(latest.values()))


def explain(message: str) -> str:
    """Return the server's message of a rejected creation with its meaning first."""
    quota = _QUOTA.search(message)
    if quota:
        return f"quota {quota['name']} is used up: {quota['rest']}"
    security = _POD_SECURITY.search(message)
    if security:
        return f"Pod Security {security['level']} of this namespace rejects the pod: {security['rest']}"
    return message


IMAGE_REASONS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError",
                 "RegistryUnavailable")  # fmt: skip
CONFIG_REASONS = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
# Events of the kubelet while it creates a container; the last event is the reason.
NODE_EVENTS = ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox", "FailedMapVolume", "Failed")


@dataclass(frozen=True, kw_only=True)
class PodLine:
    """One pod of a run; `why` is the reason why it does not run, empty where it runs."""

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
        """True until it ends."""
        return self.phase in ("Pending", "Running", "Unknown")


def pod_lines(pods: Iterable[Mapping[str, Any]], events: Iterable[Event]) -> list[PodLine]:
    """Return every pod, head first, then workers and submitters, each by age."""
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
    """Return the reason why a pod does not run; empty where it runs or ended well."""
    status = pod.get("status", {})
    if pod["metadata"].get("deletionTimestamp"):
        grace_s = pod["metadata"].get("deletionGracePeriodSeconds")
        return "terminating" + (f": it has up to {grace_s} s, in which the trainer saves" if grace_s else "")
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
    about = ("Pod", pod["metadata"]["name"])
    found = [event for event in events if (event.kind, event.name) == about and event.reason in NODE_EVENTS]
    return f"{found[-1].reason}: {found[-1].message}" if found else ""


def _num_gpus(container: Mapping[str, Any]) -> int:
    limits = container.get("resources", {}).get("limits", {})
    return sum(int(count) for name, count in limits.items() if name.endswith("/gpu"))
