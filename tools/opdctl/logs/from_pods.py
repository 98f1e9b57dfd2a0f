"""A run's log from its pods, followed over reconnects, new pods and new Ray clusters."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from opdctl.console import note
from opdctl.kube.client import KubeApi
from opdctl.kube.errors import HTTP_NOT_FOUND, ClusterError, ClusterUnreachable, StreamBroken
from opdctl.kube.podlogs import LogPod, PodLog
from opdctl.kube.rayjob import read_job
from opdctl.redact import redact

POLL_S = 2.0
# A kubelet that is restarted is back within seconds. A pod that has ended and cannot be read for so long is given up.
SILENT_S = 60.0


def print_at_once(line: str) -> None:
    """Print a line and flush it: a pipe or file gets it at once, too."""
    print(line, flush=True)


@dataclass
class PodFollower:
    """Prints a run's log from its pods until the run is over.

    `find` gives the pods that print it; with `is_one_pod` they print something else, which ends with the first of them.
    """

    api: KubeApi
    run_id: str
    find: Callable[[], list[LogPod]]
    is_one_pod: bool = False
    tail: int | None = None
    poll_s: float = POLL_S
    silent_s: float = SILENT_S
    out: Callable[[str], None] = print_at_once
    _tailed: set[str] | None = None
    """The pods of the first look, of which `tail` is: a later one is read from its beginning."""
    _logs: dict[str, PodLog] = field(default_factory=dict)
    _done: set[str] = field(default_factory=set)
    _seen: set[str] = field(default_factory=set)
    _silent_since: dict[str, float] = field(default_factory=dict)
    _is_away: bool = False
    num_lines: int = 0

    def print_now(self) -> int:
        """Print what the pods hold now; return the number of lines."""
        for pod in self._find():
            if pod.has_started:
                self._read(self._log_of(pod), follow=False)
        return self.num_lines

    def follow(self) -> int:
        """Print until the RayJob has ended or is gone and its pods are read; an unreachable API server is waited for.

        Raises:
            ClusterError: the API server refuses, or the last pod cannot be read.
        """
        while True:
            try:
                tree = self.api.find(self.api.path("rayjobs", self.run_id))
                is_over = tree is None or not read_job(tree).is_live
                is_quiet = self._follow_pods(is_over=is_over)
                if self._is_away:
                    note("the cluster is back")
                self._is_away = False
                if is_quiet and (is_over or self.is_one_pod):
                    return self.num_lines
            except ClusterError as error:
                if not error.is_passing:
                    raise
                self._silent_since.clear()
                if not self._is_away:
                    note(f"the cluster is away, following goes on when it is back: {error}")
                self._is_away = True
            time.sleep(self.poll_s)

    def _follow_pods(self, *, is_over: bool) -> bool:
        """Read every pod as far as it goes; return whether there is none left to read.

        Args:
            is_over: the run has ended, so nothing will be added, though HTTPMode's log container runs on with its head.
        """
        pods = self._find()
        for name in sorted(self._seen - self._done - {pod.name for pod in pods}):
            self._lose(name, "went before it was read to its end")
        self._seen |= {pod.name for pod in pods}
        for place, pod in enumerate(pods):
            if pod.name in self._done:
                continue
            is_final = pod.is_over or is_over
            is_last = not any(later.has_started for later in pods[place + 1 :])
            if pod.has_started and not self._has_read(pod, follow=not is_final, is_last=is_last):
                return False  # the lines of the next pod come after its own
            if is_final:
                self._done.add(pod.name)
        return all(pod.name in self._done for pod in pods)

    def _has_read(self, pod: LogPod, *, follow: bool, is_last: bool) -> bool:
        """Print a pod's new lines; False where it does not answer now, and may yet.

        A pod that has ended, or has a successor, is given up after a while.
        """
        log = self._log_of(pod)
        num_before, now = self.num_lines, time.monotonic()
        try:
            if not self._read(log, follow=follow) and not follow:
                self._lose(pod.name, "went before it was read to its end")
        except ClusterError as error:
            if not error.is_passing:
                raise
            is_live = follow and is_last
            if (follow and isinstance(error, StreamBroken)) or (is_live and isinstance(error, ClusterUnreachable)):
                return True  # a stream ends after a while, and the next look says whether the API server answers
            if self.num_lines > num_before:
                self._silent_since.pop(pod.name, None)
            if pod.name not in self._silent_since:
                note(f"pod {pod.name} cannot be read, following goes on when it can: {error}")
            since = self._silent_since[pod.name] = now if is_live else self._silent_since.get(pod.name, now)
            if time.monotonic() - since < self.silent_s:
                return False
            if is_last:
                raise ClusterError(
                    f"pod {pod.name} cannot be read: {error}",
                    fix=f"`opdctl logs {self.run_id} --from store` reads the store's copy; or ask again when the pod's node is back",
                ) from error
            self._lose(pod.name, f"is given up after {self.silent_s:g} s")
        self._silent_since.pop(pod.name, None)
        return True

    def _lose(self, name: str, why: str) -> None:
        self._done.add(name)
        copy = "" if self.is_one_pod else f": `opdctl logs {self.run_id} --from store` has its last lines"
        note(f"pod {name} {why}{copy}")

    def _find(self) -> list[LogPod]:
        pods = self.find()
        if self._tailed is None:
            self._tailed = {pod.name for pod in pods}
        return pods

    def _log_of(self, pod: LogPod) -> PodLog:
        if pod.name not in self._logs:
            if self._logs:
                self._emit(f"===== pod {pod.name} =====")
            self._logs[pod.name] = PodLog(self.api, pod, tail=self.tail if pod.name in (self._tailed or ()) else None)
        return self._logs[pod.name]

    def _read(self, log: PodLog, *, follow: bool) -> bool:
        """Print new lines; False where there is no such log: the next look sees that the pod has gone.

        Raises:
            ClusterError: the stream broke off, or there is none.
        """
        try:
            for line in log.lines(follow=follow):
                self._emit(line)
        except ClusterError as error:
            if error.status != HTTP_NOT_FOUND and "is waiting to start" not in str(error):
                raise
            return False
        return True

    def _emit(self, line: str) -> None:
        self.out(redact(line))
        self.num_lines += 1
