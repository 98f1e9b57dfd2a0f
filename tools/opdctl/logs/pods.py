"""A run's log from its pods, followed over reconnects, new pods and new Ray clusters.

The kubelet stamps every line. The API server ends a stream after a while. The next stream begins a few seconds before the
last stamp, and lines that were printed before are left out by stamp and text.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from opd.redaction import redact
from opdctl.console import note
from opdctl.errors import usage_error
from opdctl.kube.client import ROLE_LABEL, RUN_LABEL, KubeApi, unix_s
from opdctl.kube.errors import HTTP_NOT_FOUND, ClusterError, ClusterUnreachable, StreamBroken
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
    created_s: float
    has_started: bool
    is_over: bool


def run_pods(api: KubeApi, run_id: str) -> list[dict[str, Any]]:
    """Read the pods of a run."""
    return api.list(api.path("pods"), selector=f"{RUN_LABEL}={run_id}")


def find_log_pods(api: KubeApi, run_id: str, submission_mode: str) -> list[LogPod]:
    """Return the pods that print the run's log, oldest first: one a submission or head."""
    return log_pods(run_pods(api, run_id), submission_mode)


def log_pods(pods: Iterable[Mapping[str, Any]], submission_mode: str) -> list[LogPod]:
    """Choose the pods that print the run's log, oldest first."""
    role, container = LOG_CONTAINERS[submission_mode]
    found = [_log_pod(pod, container) for pod in pods if pod["metadata"].get("labels", {}).get(ROLE_LABEL) == role]
    return sorted(found, key=lambda pod: (pod.created_s, pod.name))


def find_pod(api: KubeApi, run_id: str, wanted: str, container: str | None) -> list[LogPod]:
    """Return the one pod of a run with this name or role; an empty list where it is gone.

    Args:
        container: the pod's first by default.

    Raises:
        ToolError: several pods have the role, or the pod has no such container.
    """
    pods = run_pods(api, run_id)
    named = [pod for pod in pods if pod["metadata"]["name"] == wanted]
    found = named or [pod for pod in pods if pod["metadata"].get("labels", {}).get(ROLE_LABEL) == wanted]
    if len(found) > 1:
        names = ", ".join(sorted(pod["metadata"]["name"] for pod in found))
        raise usage_error(f"run {run_id} has {len(found)} {wanted} pods", fix=f"name one of them with --pod: {names}")
    out = []
    for pod in found:
        known = [item["name"] for item in [*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])]]
        if container is not None and container not in known:
            name = pod["metadata"]["name"]
            raise usage_error(f"pod {name} has no container {container!r}", fix=f"its containers: {', '.join(known)}")
        out.append(_log_pod(pod, container or known[0]))
    return out


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
        # Between two restarts a container waits, and its log is the last start's.
        has_started=any("running" in item or "terminated" in item for item in (state, seen.get("lastState", {}))),
        is_over=status.get("phase") in ("Succeeded", "Failed") or ("terminated" in state and seen in first),
    )


class StampedLines:
    """Lines of one container's log, with repeats from reconnects; each comes out once.

    Stamps of stdout and stderr may cross, so the order does not count. After a reconnect each line of the last `OVERLAP_S`
    seconds is left out as often as it came before.
    """

    def __init__(self) -> None:
        self._recent: deque[tuple[float, str]] = deque()
        self._first_s = -math.inf
        self._newest_s = 0.0
        self._to_skip: Counter[str] = Counter()

    def reconnect(self) -> str:
        """Prepare for the next stream; return the time from which to read (RFC 3339), empty at the beginning."""
        if not self._newest_s:
            return ""
        since_s = math.floor(self._newest_s) - OVERLAP_S
        self._to_skip = Counter(line for stamp_s, line in self._recent if stamp_s >= since_s)
        return datetime.fromtimestamp(since_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def take(self, line: str, *, is_tail: bool = False) -> str | None:
        """Return the line without its stamp; None if it came before, or is older than the first line of a tail."""
        if self._to_skip.get(line):
            self._to_skip[line] -= 1
            return None
        stamp, _, text = line.partition(" ")
        stamp_s = unix_s(stamp)
        if is_tail and self._first_s == -math.inf:
            self._first_s = stamp_s
        if stamp_s < self._first_s:
            return None
        self._recent.append((stamp_s, line))
        self._newest_s = max(self._newest_s, stamp_s)
        while self._recent and self._recent[0][0] < self._newest_s - 2 * OVERLAP_S:
            self._recent.popleft()
        return text


class PodLog:
    """One container's log, over any number of streams."""

    def __init__(self, api: KubeApi, pod: LogPod, *, tail: int | None = None):
        self.api, self.pod, self.tail = api, pod, tail
        self._seen = StampedLines()

    def lines(self, *, follow: bool) -> Iterator[str]:
        """Yield new lines until the stream ends; the half line of a broken stream comes whole with the next stream.

        Raises:
            ClusterError: the stream broke or cannot be opened; a further call continues.
        """
        query: dict[str, str | int] = {"container": self.pod.container, "timestamps": "true"}
        query |= {"follow": "true"} if follow else {}
        is_tail = self.tail is not None
        if since := self._seen.reconnect():
            query["sinceTime"] = since
        elif self.tail is not None:
            query["tailLines"] = self.tail
        rest = b""
        for chunk in self.api.stream(
            self.api.path("pods", self.pod.name, "log"), read_timeout_s=READ_TIMEOUT_S, **query
        ):
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                text = self._seen.take(line.decode(errors="replace"), is_tail=is_tail)
                if text is not None:
                    yield text
        self.tail = None  # lines of later streams are new
        if rest and not follow:  # an ended container's last words need no line end
            text = self._seen.take(rest.decode(errors="replace"), is_tail=is_tail)
            if text is not None:
                yield text


def print_at_once(line: str) -> None:
    """Print a line and flush it, also into a pipe or file."""
    print(line, flush=True)


@dataclass
class PodFollower:
    """Prints a log from pods until the run is over.

    Attributes:
        find: gives the pods that print the log.
        is_one_pod: the log ends with its pod, not with the run.
        tail: the number of last lines of the pods that the first look finds.
    """

    api: KubeApi
    run_id: str
    find: Callable[[], list[LogPod]]
    is_one_pod: bool = False
    tail: int | None = None
    poll_s: float = POLL_S
    silent_s: float = SILENT_S
    out: Callable[[str], None] = print_at_once
    num_lines: int = 0
    _tailed: set[str] | None = None
    _logs: dict[str, PodLog] = field(default_factory=dict)
    _done: set[str] = field(default_factory=set)
    _seen: set[str] = field(default_factory=set)
    _silent_since: dict[str, float] = field(default_factory=dict)

    def print_now(self) -> int:
        """Print the present lines of the pods; return their number."""
        for pod in self._find():
            if pod.has_started:
                self._read(pod, follow=False)
        return self.num_lines

    def follow(self) -> int:
        """Print until the RayJob has ended or is gone and its pods are read; wait for an unreachable API server.

        Raises:
            ClusterError: the API server rejects a request, or the last pod cannot be read.
        """
        is_unreachable = False
        while True:
            try:
                tree = self.api.find(self.api.path("rayjobs", self.run_id))
                is_over = tree is None or not read_job(tree).is_live
                is_quiet = self._follow_pods(is_over=is_over)
                if is_unreachable:
                    note("the cluster answers again")
                is_unreachable = False
                if is_quiet and (is_over or self.is_one_pod):
                    return self.num_lines
            except ClusterError as error:
                if not error.is_passing:
                    raise
                self._silent_since.clear()
                if not is_unreachable:
                    note(f"the cluster is unreachable, waiting for it: {error}")
                is_unreachable = True
            time.sleep(self.poll_s)

    def _find(self) -> list[LogPod]:
        pods = self.find()
        if self._tailed is None:
            self._tailed = {pod.name for pod in pods}
        return pods

    def _follow_pods(self, *, is_over: bool) -> bool:
        """Read every pod as far as possible; return True if no pod is left to read."""
        pods = self._find()
        for name in sorted(self._seen - self._done - {pod.name for pod in pods}):
            self._lose(name, "went before it was read to its end")
        self._seen |= {pod.name for pod in pods}
        for place, pod in enumerate(pods):
            if pod.name in self._done:
                continue
            is_last = not any(later.has_started for later in pods[place + 1 :])
            # HTTPMode's log container runs as long as its head.
            is_final = pod.is_over or is_over
            if pod.has_started and not self._has_read(pod, follow=not is_final, is_last=is_last):
                return False  # the lines of the next pod come after its own
            if is_final:
                self._done.add(pod.name)
        return all(pod.name in self._done for pod in pods)

    def _has_read(self, pod: LogPod, *, follow: bool, is_last: bool) -> bool:
        """Print a pod's new lines; return False where it does not answer now and still may."""
        num_before, now = self.num_lines, time.monotonic()
        try:
            if not self._read(pod, follow=follow) and not follow:
                self._lose(pod.name, "went before it was read to its end")
        except ClusterError as error:
            if not error.is_passing:
                raise
            is_live = follow and is_last
            if (follow and isinstance(error, StreamBroken)) or (is_live and isinstance(error, ClusterUnreachable)):
                return True  # the next look shows whether the API server answers
            if self.num_lines > num_before:
                self._silent_since.pop(pod.name, None)
            if pod.name not in self._silent_since:
                note(f"pod {pod.name} cannot be read, waiting for it: {error}")
            since = self._silent_since[pod.name] = now if is_live else self._silent_since.get(pod.name, now)
            if time.monotonic() - since < self.silent_s:
                return False
            if is_last:
                fix = f"`opdctl logs {self.run_id} --from store` reads the store's copy; or ask again later"
                raise ClusterError(f"pod {pod.name} cannot be read: {error}", fix=fix) from error
            self._lose(pod.name, f"is given up after {self.silent_s:g} s")
        self._silent_since.pop(pod.name, None)
        return True

    def _lose(self, name: str, why: str) -> None:
        self._done.add(name)
        copy = "" if self.is_one_pod else f": `opdctl logs {self.run_id} --from store` has the rest"
        note(f"pod {name} {why}{copy}")

    def _read(self, pod: LogPod, *, follow: bool) -> bool:
        """Print new lines; return False where there is no such log.

        Raises:
            ClusterError: the stream broke, or cannot be opened.
        """
        if pod.name not in self._logs:
            if self._logs:
                self._emit(f"===== pod {pod.name} =====")
            self._logs[pod.name] = PodLog(self.api, pod, tail=self.tail if pod.name in (self._tailed or ()) else None)
        try:
            for line in self._logs[pod.name].lines(follow=follow):
                self._emit(line)
        except ClusterError as error:
            if error.status != HTTP_NOT_FOUND and "is waiting to start" not in str(error):
                raise
            return False
        return True

    def _emit(self, line: str) -> None:
        self.out(redact(line))
        self.num_lines += 1
