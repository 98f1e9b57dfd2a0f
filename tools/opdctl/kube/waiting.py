"""Reasons why objects of a run are missing and pods do not run: sentences of the server, the scheduler and the kubelet."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opdctl.kube.client import ROLE_LABEL, unix_s

# Failures of KubeRay, Kubernetes' Job controller or Kueue to create an object; the message has the reason.
FAILED_CREATION = re.compile(r"^(FailedToCreate\w+|FailedCreate|InvalidRayJob\w+|InvalidRayCluster\w+)$")
# Events of the kubelet while it creates a container; the last event is the reason.
NODE_EVENTS = ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox", "FailedMapVolume", "Failed")
_ORDER = {"head": 0, "worker": 1, "teacher": 2, "submitter": 3}
Event = Mapping[str, Any]
"""A core event (v1)."""


def last_s(event: Event) -> float:
    """Return the time of an event's last occurrence; events of the newer API have their times in other fields."""
    stamps = ((event.get("series") or {}).get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return max(map(unix_s, stamps))


def blockers(events: Sequence[Event], *, names: Sequence[str], since_s: float) -> list[str]:
    """Return one line for each kind of failure to create the objects of a RayJob and a RayCluster: its newest message.

    Failures before `since_s`, the creation of the run's newest object, are overcome.
    """
    latest: dict[tuple[str, str], str] = {}
    for event in events:
        about, reason = event.get("involvedObject", {}), str(event.get("reason", ""))
        is_relevant = about.get("name") in names and event.get("type") == "Warning" and last_s(event) >= since_s
        if is_relevant and FAILED_CREATION.match(reason):
            latest[str(about.get("kind")), reason] = str(event.get("message", ""))
    return list(dict.fromkeys(latest.values()))


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


def pod_lines(pods: Iterable[Mapping[str, Any]], events: Sequence[Event] = ()) -> list[PodLine]:
    """Return every pod, head first, then workers, a teacher's servers and submitters, each by age."""
    lines = [_line(pod, events) for pod in pods]
    return sorted(lines, key=lambda line: (_ORDER.get(line.role, 4), line.created_s, line.name))


def _line(pod: Mapping[str, Any], events: Sequence[Event]) -> PodLine:
    metadata, spec, status = pod["metadata"], pod.get("spec", {}), pod.get("status", {})
    limits = [container.get("resources", {}).get("limits", {}) for container in spec.get("containers", [])]
    return PodLine(
        name=metadata["name"],
        role=metadata.get("labels", {}).get(ROLE_LABEL, "?"),
        node=spec.get("nodeName", ""),
        phase=status.get("phase", "Pending"),
        why=why(pod, events),
        num_restarts=sum(int(item.get("restartCount", 0)) for item in status.get("containerStatuses", [])),
        num_gpus=sum(int(count) for limit in limits for name, count in limit.items() if name.endswith("/gpu")),
        created_s=unix_s(metadata.get("creationTimestamp")),
    )


def why(pod: Mapping[str, Any], events: Sequence[Event]) -> str:
    """Return the reason why a pod does not run; empty where it runs or ended well."""
    status = pod.get("status", {})
    if pod["metadata"].get("deletionTimestamp"):
        grace_s = pod["metadata"].get("deletionGracePeriodSeconds")
        return "terminating" + (f": it ends within {grace_s} s" if grace_s else "")
    if status.get("reason") in ("Evicted", "Preempting", "NodeLost", "Terminated"):
        return _sentence(status)
    is_pending = status.get("phase", "Pending") == "Pending"
    if is_pending and not pod.get("spec", {}).get("nodeName"):
        placed = [item for item in status.get("conditions", []) if item["type"] == "PodScheduled"]
        return _sentence(placed[0]) if placed else "waits for the scheduler"
    of_node = [event for event in events if event["involvedObject"].get("name") == pod["metadata"]["name"]
               and event.get("reason") in NODE_EVENTS]  # fmt: skip
    on_node = _sentence(of_node[-1]) if of_node else ""
    reasons = list(_of_containers(status, on_node))
    return reasons[0] if reasons else (on_node or "its containers are being created") * is_pending


def _of_containers(status: Mapping[str, Any], on_node: str) -> Iterator[str]:
    """Yield the reason of each container that waits, ended badly, or runs before the others."""
    init = status.get("initContainerStatuses", [])
    for item in [*init, *status.get("containerStatuses", [])]:
        state, last, name = item.get("state", {}), item.get("lastState", {}).get("terminated"), item["name"]
        ended, waiting = state.get("terminated"), state.get("waiting", {})
        if waiting.get("reason") in ("PodInitializing", "ContainerCreating"):
            yield from filter(None, [on_node])
        elif waiting:
            yield f"container {name}: {_sentence(waiting)}" + (f"; {_ended(last)}" if last else "")
        elif ended and ended.get("exitCode", 0) != 0:
            yield f"container {name}: {_ended(ended)}"
        elif "running" in state and item in init:
            yield f"init container {name} is running" + " (it waits for the head)" * (name == "wait-gcs-ready")


def _ended(terminated: Mapping[str, Any]) -> str:
    advice = ": raise its memory limit or lower the load" * (terminated.get("reason") == "OOMKilled")
    return f"exit code {terminated.get('exitCode')} ({_sentence(terminated)}){advice}"


def _sentence(tree: Mapping[str, Any]) -> str:
    return ": ".join(filter(None, (tree.get("reason"), tree.get("message"))))
