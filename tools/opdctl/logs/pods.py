"""A run's log from its pods, followed over reconnects, new pods and new Ray clusters.

The kubelet stamps every line. The API server ends a stream after a while. The next stream begins a few seconds before the
last stamp, and lines that were printed before are left out by stamp and text.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from opd.redaction import redact
from opdctl.console import note
from opdctl.kube.client import HTTP_NOT_FOUND, ROLE_LABEL, RUN_LABEL, ClusterError, KubeApi, unix_s, wait_until
from opdctl.kube.rayjob import read_job

# (role of the pod, container) by submission mode, as the charts make them.
LOG_CONTAINERS = {"K8sJobMode": ("submitter", "submitter"), "HTTPMode": ("head", "log")}
# A silent connection is opened anew after this long.
READ_TIMEOUT_S = 30.0
# `sinceTime` has whole seconds, and stamps of stdout and stderr cross by less than one second.
OVERLAP_S = 3
POLL_S = 2.0
# A kubelet that restarts is back within seconds; a pod that has ended is given up after this long.
SILENT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class LogPod:
    """A container that prints a log; `is_over` once it will print nothing more."""

    name: str
    container: str
    has_started: bool
    is_over: bool


def find_log_pods(api: KubeApi, run_id: str, submission_mode: str) -> list[LogPod]:
    """Return the pods that print the run's log, oldest first: one a submission or head."""
    role, container = LOG_CONTAINERS[submission_mode]
    pods = api.list(api.path("pods"), selector=f"{RUN_LABEL}={run_id},{ROLE_LABEL}={role}")
    pods.sort(key=lambda pod: (unix_s(pod["metadata"].get("creationTimestamp")), pod["metadata"]["name"]))
    return [_log_pod(pod, container) for pod in pods]


def _log_pod(pod: Mapping[str, Any], container: str) -> LogPod:
    status = pod.get("status", {})
    seen: Mapping[str, Any] = next(
        (item for item in status.get("containerStatuses", []) if item["name"] == container), {}
    )
    # Between two restarts a container waits, and its log is the last start's.
    states = {*seen.get("state", {}), *seen.get("lastState", {})}
    return LogPod(
        name=pod["metadata"]["name"],
        container=container,
        has_started=bool(states & {"running", "terminated"}),
        is_over=status.get("phase") in ("Succeeded", "Failed"),
    )


class PodLog:
    """Lines of one container's log over any number of streams; each comes out once, without its stamp.

    Stamps of stdout and stderr may cross, so the order does not count. After a reconnect each line of the last `OVERLAP_S`
    seconds is left out as often as it came before.

    Args:
        tail: the number of last lines to begin with.
    """

    def __init__(self, api: KubeApi, pod: LogPod, *, tail: int | None = None):
        self.api, self.pod, self.tail = api, pod, tail
        self._recent: deque[tuple[float, str]] = deque()
        self._first_s: float | None = None
        self._newest_s = 0.0
        self._to_skip: Counter[str] = Counter()

    def lines(self, *, follow: bool) -> Iterator[str]:
        """Yield new lines until the stream ends; the half line of a broken stream comes whole with the next stream.

        A ClusterError means that the stream broke or cannot be opened; a further call continues.
        """
        query: dict[str, str | int] = {"container": self.pod.container, "timestamps": "true"}
        query |= {"follow": "true"} if follow else {}
        if self._newest_s:
            query["sinceTime"] = self.reconnect()
        elif self.tail:
            query["tailLines"] = self.tail
        rest = b""
        path = self.api.path("pods", self.pod.name, "log")
        for chunk in self.api.stream(path, read_timeout_s=READ_TIMEOUT_S, **query):
            *whole, rest = (rest + chunk).split(b"\n")
            yield from (text for text in map(self.take, whole) if text is not None)
        if not self._newest_s:
            self.tail = None  # a container without a line: what it prints later is new
        if rest and not follow:  # an ended container's last words need no line end
            yield from (text for text in [self.take(rest)] if text is not None)

    def reconnect(self) -> str:
        """Prepare for the next stream; return the time from which to read (RFC 3339)."""
        since_s = math.floor(self._newest_s) - OVERLAP_S
        self._to_skip = Counter(line for stamp_s, line in self._recent if stamp_s >= since_s)
        return datetime.fromtimestamp(since_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def take(self, data: bytes) -> str | None:
        """Return the line without its stamp; None if it came before, or is older than the first line of a tail."""
        line = data.decode(errors="replace")
        if self._to_skip.get(line):
            self._to_skip[line] -= 1
            return None
        stamp, _, text = line.partition(" ")
        stamp_s = unix_s(stamp)
        if self._first_s is None:
            self._first_s = stamp_s if self.tail else 0.0
        if stamp_s < self._first_s:
            return None
        self._recent.append((stamp_s, line))
        self._newest_s = max(self._newest_s, stamp_s)
        while self._recent[0][0] < self._newest_s - 2 * OVERLAP_S:
            self._recent.popleft()
        return text


@dataclass
class PodFollower:
    """Prints a run's log from its pods.

    Attributes:
        tail: the number of last lines of the pods that the first look finds.
        silent_s: a pod that does not answer is given up after this long, once it or the run has ended.
        out: takes each line.
    """

    api: KubeApi
    run_id: str
    submission_mode: str
    tail: int | None = None
    poll_s: float = POLL_S
    silent_s: float = SILENT_S
    out: Callable[[str], None] = field(default_factory=lambda: partial(print, flush=True))
    num_lines: int = 0
    _logs: dict[str, PodLog] = field(default_factory=dict)
    _done: set[str] = field(default_factory=set)
    _silent_since: dict[str, float] = field(default_factory=dict)

    def print_now(self) -> int:
        """Print the present lines of the pods; return their number."""
        for pod in find_log_pods(self.api, self.run_id, self.submission_mode):
            if pod.has_started:
                self._read(pod, follow=False)
        return self.num_lines

    def follow(self) -> int:
        """Print until the RayJob has ended or is gone and its pods are read; wait for an unreachable API server."""

        def look() -> int | str:
            try:
                tree = self.api.find(self.api.path("rayjobs", self.run_id))
                is_over = tree is None or not read_job(tree).is_live
                is_quiet = self._follow_pods(is_over=is_over)
            except ClusterError:
                self._silent_since.clear()
                raise
            self.tail = None  # later pods are read whole
            return self.num_lines if is_quiet and is_over else ""

        return wait_until(look, pause=lambda: time.sleep(self.poll_s))

    def _follow_pods(self, *, is_over: bool) -> bool:
        """Read every pod as far as possible; return True if no pod is left to read."""
        pods = find_log_pods(self.api, self.run_id, self.submission_mode)
        for name in sorted(self._logs.keys() - self._done - {pod.name for pod in pods}):
            self._lose(name, "went before it was read to its end")
        for place, pod in enumerate(pods):
            if pod.name in self._done or not pod.has_started:
                continue
            # HTTPMode's log container runs as long as its head.
            is_final = pod.is_over or is_over
            has_next = any(later.has_started for later in pods[place + 1 :])
            try:
                self._read(pod, follow=not is_final)
                self._silent_since.pop(pod.name, None)
                self._done |= {pod.name} if is_final else set()
            except ClusterError as error:
                if not error.is_passing:
                    raise
                is_needed = not (is_final or has_next)
                if error.status == 0 and is_needed:
                    return False  # a broken stream is opened again at once
                if pod.name not in self._silent_since:
                    note(f"pod {pod.name} cannot be read, waiting for it: {error}")
                since_s = self._silent_since.setdefault(pod.name, time.monotonic())
                if is_needed or time.monotonic() - since_s < self.silent_s:
                    return False  # the lines of the next pod come after its own
                self._lose(pod.name, f"is given up after {self.silent_s:g} s")
        return all(pod.name in self._done for pod in pods)

    def _lose(self, name: str, why: str) -> None:
        self._done.add(name)
        note(f"pod {name} {why}: `opdctl logs {self.run_id}` reads the rest from the store")

    def _read(self, pod: LogPod, *, follow: bool) -> None:
        """Print new lines; a container that is gone or has not started has none."""
        if pod.name not in self._logs:
            if self._logs:
                self.out(f"===== pod {pod.name} =====")
            self._logs[pod.name] = PodLog(self.api, pod, tail=self.tail)
        try:
            for line in self._logs[pod.name].lines(follow=follow):
                self.out(redact(line))
                self.num_lines += 1
        except ClusterError as error:
            if error.status != HTTP_NOT_FOUND and "is waiting to start" not in str(error):
                raise
