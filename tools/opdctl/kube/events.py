"""Reads Kubernetes' events: what stands in the way of objects that were never made, and of pods that wait."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from opdctl.kube.times import unix_s

# Objects that KubeRay, Kubernetes' Job controller or Kueue could not create; the message says why.
FAILED_CREATION = re.compile(r"^(FailedToCreate\w+|FailedCreate|InvalidRayJob\w+|InvalidRayCluster\w+)$")
_QUOTA = re.compile(r"exceeded quota: (?P<name>\S+?), (?P<rest>requested: .*)$")
_POD_SECURITY = re.compile(r'violates PodSecurity "(?P<level>[^"]+)": (?P<rest>.*)$')


@dataclass(frozen=True, kw_only=True)
class Event:
    """One event; `last_s` is when it was seen last, Unix seconds."""

    kind: str
    name: str
    is_warning: bool
    reason: str
    message: str
    last_s: float


def read_events(objects: Iterable[Mapping[str, Any]]) -> list[Event]:
    """Core events (v1), oldest first; ones recorded by the newer API carry their times in other fields."""
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


def of_object(events: Iterable[Event], kind: str, name: str) -> list[Event]:
    """The events about one object, oldest first."""
    return [event for event in events if event.kind == kind and event.name == name]


def blockers(
    events: Iterable[Event], *, names: Iterable[str], since_s: float, overcome: Iterable[str] = ()
) -> list[str]:
    """Why objects of a run cannot be created, one line each, the newest word of each kind of failure.

    Args:
        names: the run's RayJob, RayClusters and submitter Job.
        since_s: older events speak of an earlier run of this name.
        overcome: reasons whose objects are there by now.
    """
    wanted, past = set(names), set(overcome)
    latest: dict[tuple[str, str], str] = {}
    for event in events:
        is_relevant = event.name in wanted and event.is_warning and event.last_s >= since_s
        if is_relevant and event.reason not in past and FAILED_CREATION.match(event.reason):
            latest[event.kind, event.reason] = explain(event.message)
    return list(dict.fromkeys(latest.values()))


def explain(message: str) -> str:
    """What a refused creation means, in front of the server's own words."""
    quota = _QUOTA.search(message)
    if quota:
        return f"quota {quota['name']} is used up: {quota['rest']}"
    security = _POD_SECURITY.search(message)
    if security:
        return f"Pod Security {security['level']} of this namespace refuses the pod: {security['rest']}"
    return message
