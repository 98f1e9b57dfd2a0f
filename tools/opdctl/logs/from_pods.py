"""Follows a run's log from its pods over reconnects, new pods and new Ray clusters, then from the store.

A pod that went before it was read to its end leaves a gap that the store's copy of the driver's log fills: what lies
there behind the last line that was printed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from opd.errors import StoreUnavailable
from opd.runs.driver_log import LOG_FILE
from opd.store.base import Store
from opdctl.console import note
from opdctl.kube.client import KubeApi
from opdctl.kube.errors import HTTP_NOT_FOUND, ClusterError, ClusterUnreachable, StreamBroken
from opdctl.kube.podlogs import LogPod, PodLog
from opdctl.kube.rayjob import JobState, read_job
from opdctl.redact import redact
from opdctl.runs.listing import Listing

POLL_S = 2.0
# A kubelet that is restarted is back within seconds. A pod that has ended and cannot be read for so long is given up.
SILENT_S = 60.0
# Enough to find the place again where a pod's last lines lie in the store's copy.
NUM_REMEMBERED = 2000
NUM_CONTEXT = 50


def print_at_once(line: str) -> None:
    """Also into a pipe or a file: who follows waits for the line, not for a full buffer."""
    print(line, flush=True)


@dataclass
class PodFollower:
    """Prints a run's log from its pods until the run is over; `store` is where its copy lies, if it can be read.

    `find` gives the pods that print it; with `is_one_pod` they print something else, which ends with the first of them.
    """

    api: KubeApi
    run_id: str
    find: Callable[[], list[LogPod]]
    is_one_pod: bool = False
    store: Store | None = None
    tail: int | None = None
    poll_s: float = POLL_S
    silent_s: float = SILENT_S
    out: Callable[[str], None] = print_at_once
    _logs: dict[str, PodLog] = field(default_factory=dict)
    _done: set[str] = field(default_factory=set)
    _printed: deque[str] = field(default_factory=lambda: deque(maxlen=NUM_REMEMBERED))
    _silent_since: dict[str, float] = field(default_factory=dict)
    _is_away: bool = False
    num_lines: int = 0

    def print_now(self) -> int:
        """Prints what the pods hold now; returns the number of lines."""
        for pod in self.find():
            if pod.has_started:
                self._read(self._log_of(pod), follow=False)
        return self.num_lines

    def follow(self) -> int:
        """Prints until the RayJob has ended or is gone and its pods are read; also through an API server that is away."""
        while True:
            try:
                job = self._job()
                is_over = job is None or not job.is_live
                is_quiet = self._follow_pods(is_over=is_over)
                if self._is_away:
                    note("the cluster is back")
                    self._is_away = False
                if is_quiet and (is_over or self.is_one_pod):
                    self._catch_up(is_final=True)
                    return self.num_lines
            except ClusterError as error:
                if not error.is_passing:
                    raise
                self._silent_since.clear()
                if not self._is_away:
                    note(f"the cluster is away, following goes on when it is back: {error}")
                self._is_away = True
            time.sleep(self.poll_s)

    def _job(self) -> JobState | None:
        tree = self.api.find(self.api.path("rayjobs", self.run_id))
        return None if tree is None else read_job(tree)

    def _follow_pods(self, *, is_over: bool) -> bool:
        """Reads every pod as far as it goes; whether there is none left to read.

        Args:
            is_over: the run has ended, so nothing will be added, though HTTPMode's log container runs on with its head.
        """
        pods = self.find()
        lost = set(self._logs) - self._done - {pod.name for pod in pods}
        if lost:
            self._done |= lost
            self._catch_up(is_final=False)
        for place, pod in enumerate(pods):
            if pod.name in self._done:
                continue
            is_final = pod.is_over or is_over
            is_last = not any(later.has_started for later in pods[place + 1 :])
            if pod.has_started and not self._has_read(pod, follow=not is_final, is_last=is_last):
                return False  # the lines of the next pod come behind its own
            if is_final:
                self._done.add(pod.name)
        return all(pod.name in self._done for pod in pods)

    def _has_read(self, pod: LogPod, *, follow: bool, is_last: bool) -> bool:
        """Prints a pod's new lines; False where it does not answer now, and may yet.

        A pod that has ended, or has a successor, is given up after a while, and what it has not shown comes from the store.
        """
        log = self._log_of(pod)
        num_before, now = self.num_lines, time.monotonic()
        try:
            self._read(log, follow=follow)
        except ClusterError as error:
            if not error.is_passing:
                raise
            is_live = follow and is_last
            if (follow and isinstance(error, StreamBroken)) or (is_live and isinstance(error, ClusterUnreachable)):
                return True  # a stream ends after a while, and whether the API server is away the next look says
            if self.num_lines > num_before:
                self._silent_since.pop(pod.name, None)
            if pod.name not in self._silent_since:
                note(f"pod {pod.name} cannot be read, following goes on when it can: {error}")
            since = self._silent_since[pod.name] = now if is_live else self._silent_since.get(pod.name, now)
            if time.monotonic() - since < self.silent_s:
                return False
            if self.store is None:
                raise ClusterError(
                    f"pod {pod.name} cannot be read, and there is no store that has its last lines: {error}",
                    fix="name the store with --store, or ask again when the pod's node is back",
                ) from error
            note(f"pod {pod.name} is given up after {self.silent_s:g} s: the rest of its lines comes from the store")
            self._done.add(pod.name)
            self._catch_up(is_final=False)
        self._silent_since.pop(pod.name, None)
        return True

    def _log_of(self, pod: LogPod) -> PodLog:
        if pod.name not in self._logs:
            if self._logs:
                self._emit(f"===== pod {pod.name} =====")
            self._logs[pod.name] = PodLog(self.api, pod, tail=self.tail)
        return self._logs[pod.name]

    def _read(self, log: PodLog, *, follow: bool) -> None:
        """Prints new lines; a pod that goes is the next look's business.

        Raises:
            ClusterError: the stream broke off, or there is none.
        """
        try:
            for line in log.lines(follow=follow):
                self._printed.append(line)
                self._emit(line)
        except ClusterError as error:
            if error.status != HTTP_NOT_FOUND and "is waiting to start" not in str(error):
                raise

    def _catch_up(self, *, is_final: bool) -> None:
        """Prints what the store's copy holds behind the last line that came from a pod."""
        if self.store is None:
            return
        try:
            attempts = stored_lines(self.store)
        except StoreUnavailable as error:
            note(f"the store is away; lines that no pod showed may be missing here: {error}")
            return
        for line in missing(list(self._printed), attempts, is_final=is_final):
            self._printed.append(line)
            self._emit(line)

    def _emit(self, line: str) -> None:
        self.out(redact(line))
        self.num_lines += 1


def stored_lines(store: Store) -> list[list[str]]:
    """The driver's log of every attempt, ascending, as far as it lies in the store."""
    listing = Listing(store)
    attempts = []
    for attempt in listing.folders():
        data = b"".join(store.get(key) for key in listing.parts(attempt, LOG_FILE))
        attempts.append(data.decode(errors="replace").splitlines())
    return attempts


def missing(printed: Sequence[str], attempts: Sequence[Sequence[str]], *, is_final: bool) -> Sequence[str]:
    """The stored lines after the last one that was printed; all where none was.

    A line may occur many times: of the places where it could be, the one with the most equal lines before it is meant.
    Lines that only the pod printed (the submitter's own) are passed over.

    Args:
        attempts: stored lines of every attempt.
        is_final: no pod will print any more; else a newer attempt is left to the pod that prints it.
    """
    stored = [line for lines in attempts for line in lines]
    known = set(stored)
    shared = [line for line in printed if line in known]
    newest_from = len(stored) - len(attempts[-1]) if attempts else 0
    if not shared:
        return stored if is_final else stored[:newest_from]

    def num_equal(index: int) -> int:
        count = 0
        while count < min(NUM_CONTEXT, index + 1, len(shared)) and stored[index - count] == shared[-1 - count]:
            count += 1
        return count

    places = [index for index, line in enumerate(stored) if line == shared[-1]]
    best = max(places, key=lambda index: (num_equal(index), index))
    is_in_newest = best >= newest_from
    return stored[best + 1 :] if is_final or is_in_newest else stored[best + 1 : newest_from]
