"""Streams a run's log as its pods print it: finds the container, and reconnects without losing or repeating a line.

The kubelet stamps every line. The API server ends a stream after a while; it is opened again a few seconds before the
last stamp, and what was given out before is left out by stamp and text.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from opdctl.errors import usage_error
from opdctl.kube.client import ROLE_LABEL, RUN_LABEL, KubeApi, unix_s
from opdctl.kube.errors import ClusterError, StreamBroken

# (role of the pod, container) by submission mode, as the charts make them.
LOG_CONTAINERS = {"K8sJobMode": ("submitter", "submitter"), "HTTPMode": ("head", "log")}
# The API server ends a stream after some minutes to hours; a silent connection is opened anew after this long.
READ_TIMEOUT_S = 30.0
# `sinceTime` has whole seconds, and stamps of stdout and stderr cross by less than one.
OVERLAP_S = 3


@dataclass(frozen=True, kw_only=True)
class LogPod:
    """A pod that prints the run's log; `is_over` once it will print nothing more."""

    name: str
    container: str
    created_s: float
    has_started: bool
    is_over: bool


def log_pods(pods: Iterable[Mapping[str, Any]], submission_mode: str) -> list[LogPod]:
    """The pods that print the run's log, oldest first: one a submission or head."""
    role, container = LOG_CONTAINERS[submission_mode]
    found = [_log_pod(pod, container) for pod in pods if pod["metadata"].get("labels", {}).get(ROLE_LABEL) == role]
    return sorted(found, key=lambda pod: (pod.created_s, pod.name))


def _log_pod(pod: Mapping[str, Any], container: str) -> LogPod:
    status = pod.get("status", {})
    first = status.get("initContainerStatuses", [])
    statuses = [*first, *status.get("containerStatuses", [])]
    seen: Mapping[str, Any] = next((item for item in statuses if item["name"] == container), {})
    state = seen.get("state", {})
    return LogPod(
        name=pod["metadata"]["name"],
        container=container,
        created_s=unix_s(pod["metadata"].get("creationTimestamp")),
        # Between two restarts a container waits, and its log is that of the last one.
        has_started=any("running" in item or "terminated" in item for item in (state, seen.get("lastState", {}))),
        is_over=status.get("phase") in ("Succeeded", "Failed") or ("terminated" in state and seen in first),
    )


def find_pod(api: KubeApi, run_id: str, wanted: str, container: str | None) -> list[LogPod]:
    """The one pod of a run that has this name, or this role; none where it is gone.

    Args:
        container: its first one by default.

    Raises:
        ToolError: several pods have the role, or the pod has no such container.
    """
    pods = api.list(api.path("pods"), selector=f"{RUN_LABEL}={run_id}")
    named = [pod for pod in pods if pod["metadata"]["name"] == wanted]
    found = named or [pod for pod in pods if pod["metadata"].get("labels", {}).get(ROLE_LABEL) == wanted]
    if len(found) > 1:
        names = ", ".join(sorted(pod["metadata"]["name"] for pod in found))
        raise usage_error(f"run {run_id} has {len(found)} {wanted} pods", fix=f"name one of them with --pod: {names}")
    out = []
    for pod in found:
        spec = pod["spec"]
        known = [item["name"] for item in [*spec["containers"], *spec.get("initContainers", [])]]
        if container is not None and container not in known:
            raise usage_error(
                f"pod {pod['metadata']['name']} has no container {container!r}",
                fix=f"its containers: {', '.join(known)}",
            )
        out.append(_log_pod(pod, container or known[0]))
    return out


class StampedLines:
    """Takes the lines of one container's log, with repeats from reconnects, and gives each out once.

    Stamps of stdout and stderr may cross by a moment, so what counts is not the order: after a reconnect each line of the
    last `OVERLAP_S` seconds is left out as often as it was given out, whatever is new comes through.
    """

    def __init__(self) -> None:
        self._recent: deque[tuple[float, str]] = deque()
        self._newest_s = 0.0
        self._to_skip: Counter[str] = Counter()
        self._first = ""
        self._first_s = 0.0
        self._is_before = False

    def begin(self, line: str) -> None:
        """Nothing before this line will be given out, which is the first of a tail, or the part of it that has come."""
        self._first, self._first_s = line, unix_s(line.partition(" ")[0])

    def reconnect(self) -> str:
        """Called before the stream is opened again; returns from when to read (RFC 3339), empty at the beginning."""
        if not (newest_s := self._newest_s or self._first_s):
            return ""
        self._is_before = bool(self._first)
        since_s = math.floor(newest_s) - OVERLAP_S
        self._to_skip = Counter(line for stamp_s, line in self._recent if stamp_s >= since_s)
        return datetime.fromtimestamp(since_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def take(self, line: str) -> str | None:
        """The line without its stamp, None if it was given out before, or lies before the tail."""
        if self._to_skip.get(line):
            self._to_skip[line] -= 1
            self._is_before = False
            return None
        stamp, _, text = line.partition(" ")
        stamp_s = unix_s(stamp)
        if self._is_before:
            if stamp_s <= self._first_s and not line.startswith(self._first):
                return None
            self._is_before = False
        self._recent.append((stamp_s, line))
        self._newest_s = max(self._newest_s, stamp_s)
        while self._recent and self._recent[0][0] < self._newest_s - 2 * OVERLAP_S:
            self._recent.popleft()
        return text


class PodLog:
    """One container's log, read as often as it takes."""

    def __init__(self, api: KubeApi, pod: LogPod, *, tail: int | None = None):
        self.api = api
        self.pod = pod
        self.tail = tail
        self._seen = StampedLines()
        self._rest = b""

    def lines(self, *, follow: bool) -> Iterator[str]:
        """New lines until the stream ends; a half line at a broken stream's end comes whole with the next one.

        Raises:
            ClusterError: the stream broke off or cannot be opened; call again to go on.
        """
        self._rest = b""
        query: dict[str, str | int] = {"container": self.pod.container, "timestamps": "true"}
        if follow:
            query["follow"] = "true"
        since = self._seen.reconnect()
        if since:
            query["sinceTime"] = since
        elif self.tail is not None:
            query["tailLines"] = self.tail
        path = self.api.path("pods", self.pod.name, "log")
        # Of the first stream only: what comes later is new, also where that one held no line.
        tail, self.tail = self.tail, None
        begins = tail is not None
        try:
            for chunk in self.api.stream(path, read_timeout_s=READ_TIMEOUT_S, **query):
                *whole, self._rest = (self._rest + chunk).split(b"\n")
                if begins and (whole or b" " in self._rest):
                    # A half line may end within a character.
                    self._seen.begin([*whole, self._rest][0].decode(errors="replace").rstrip("\ufffd"))
                    begins = False
                for line in whole:
                    text = self._seen.take(line.decode(errors="replace"))
                    if text is not None:
                        yield text
        except StreamBroken:
            if begins and self._rest:
                self.tail = tail  # not even a stamp has come
            raise
        except ClusterError:
            self.tail = tail  # there was no stream
            raise
        if self._rest and not follow:  # an ended container's last words need no line end
            text = self._seen.take(self._rest.decode(errors="replace"))
            if text is not None:
                yield text


def last_line(api: KubeApi, run_id: str, submission_mode: str) -> str:
    """The newest line that says something of the run's progress, empty where no pod has printed any."""
    pods = [pod for pod in find_log_pods(api, run_id, submission_mode) if pod.has_started]
    if not pods:
        return ""
    path = api.path("pods", pods[-1].name, "log")
    try:
        lines = api.text(path, container=pods[-1].container, tailLines=50).splitlines()
    except ClusterError:  # the pod went in between
        return ""
    steps = [line for line in lines if " step " in line]
    return (steps or [line for line in lines if line.strip()] or [""])[-1].strip()


def find_log_pods(api: KubeApi, run_id: str, submission_mode: str) -> list[LogPod]:
    """The pods that print the run's log right now."""
    return log_pods(api.list(api.path("pods"), selector=f"{RUN_LABEL}={run_id}"), submission_mode)
