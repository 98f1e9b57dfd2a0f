"""Follows a run's log from its pods over reconnects, new pods and new Ray clusters, then from the store.

A pod that went before it was read to its end leaves a gap that the store's copy of the driver's log fills: what lies there
behind the last line that was printed, of the attempts that were claimed before the next pod was made. What is claimed later
is printed by that pod. The two times are of two clocks, the API server's (`creationTimestamp`) and the store's (when
`owner.json` was written): where these are further apart than a pod is older than its driver's claim, a line may come on the
wrong side of a pod.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from opd.errors import StoreUnavailable
from opd.runs.attempts import OWNER_FILE, attempt_prefix
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
# A kubelet that is restarted is back within seconds. A pod that has ended and cannot be read for so long is given up, and so
# is a store for the lines that others wait for.
SILENT_S = 60.0
# Enough to find the place again where a pod's last lines lie in the store's copy.
NUM_REMEMBERED = 2000
NUM_CONTEXT = 50


def print_at_once(line: str) -> None:
    """Also into a pipe or a file: who follows waits for the line, not for a full buffer."""
    print(line, flush=True)


@dataclass
class Outage:
    """A store that does not answer: since when, when it was last asked, and whether it was said that lines may be missing."""

    since_s: float
    asked_s: float
    is_said: bool = False


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
    _tailed: set[str] | None = None
    """The pods of the first look, of which `tail` is: a later one is read from its beginning."""
    _logs: dict[str, PodLog] = field(default_factory=dict)
    _done: set[str] = field(default_factory=set)
    _printed: deque[str] = field(default_factory=lambda: deque(maxlen=NUM_REMEMBERED))
    _silent_since: dict[str, float] = field(default_factory=dict)
    _seen: dict[str, float] = field(default_factory=dict)
    """When each pod that was ever there was made."""
    _gone: set[float] = field(default_factory=set)
    """When those were made that went before they were read to their end; until the next pod begins, for a driver outlives its submitter."""
    _unsure: set[float] = field(default_factory=set)
    """When those were made that were read as far as they went, though lines may have come behind theirs; until the next pod begins."""
    _looked_up: set[float] = field(default_factory=set)
    """Those of both for which the store was asked already."""
    _given_up: ClusterError | None = None
    """Of the last pod whose lines are to come from the store."""
    _store_away: Outage | None = None
    _printed_of_s: float = 0.0
    """When the pod was made whose line was printed last."""
    _away: set[str] = field(default_factory=set)
    num_lines: int = 0

    def print_now(self) -> int:
        """Prints what the pods hold now; returns the number of lines."""
        for pod in self._find():
            if pod.has_started:
                self._read(self._log_of(pod), follow=False)
        return self.num_lines

    def follow(self) -> int:
        """Prints until the RayJob has ended or is gone and its pods are read; also through an API server or a store that is away."""
        while True:
            try:
                job = self._job()
                is_over = job is None or not job.is_live
                is_quiet = self._follow_pods(is_over=is_over)
                is_end = is_quiet and (is_over or self.is_one_pod)
                if is_quiet:
                    self._catch_up(is_final=is_end)
                still_away = {"store"} if self._store_away is not None else set()
                for what in sorted(self._away - still_away):
                    note(f"the {what} is back")
                self._away &= still_away
                if is_end:
                    return self.num_lines
            except ClusterError as error:
                if not error.is_passing:
                    raise
                self._silent_since.clear()
                self._unsure.add(max(self._seen.values(), default=0.0))  # pods may come and go meanwhile
                self._wait_for("cluster", f"is away, following goes on when it is back: {error}")
            except StoreUnavailable as error:
                why = ", which has lines that no pod shows" if self._gone else ""
                until = f"when it is back, or after {self.silent_s:g} s"
                self._wait_for("store", f"is away{why}, following goes on {until}: {error}")
            time.sleep(self.poll_s)

    def _wait_for(self, what: str, why: str) -> None:
        if what not in self._away:
            note(f"the {what} {why}")
        self._away.add(what)

    def _job(self) -> JobState | None:
        tree = self.api.find(self.api.path("rayjobs", self.run_id))
        return None if tree is None else read_job(tree)

    def _follow_pods(self, *, is_over: bool) -> bool:
        """Reads every pod as far as it goes; whether there is none left to read.

        Args:
            is_over: the run has ended, so nothing will be added, though HTTPMode's log container runs on with its head.
        """
        pods = self._find()
        lost = set(self._seen) - self._done - {pod.name for pod in pods}
        self._done |= lost
        self._gone |= {self._seen[name] for name in lost}
        self._seen |= {pod.name: pod.created_s for pod in pods}
        for place, pod in enumerate(pods):
            if pod.name in self._done:
                continue
            if pod.name not in self._logs:
                self._catch_up(pod.created_s, begins=pod.has_started)
            is_final = pod.is_over or is_over
            is_last = not any(later.has_started for later in pods[place + 1 :])
            if pod.has_started and not self._has_read(pod, follow=not is_final, is_last=is_last):
                return False  # the lines of the next pod come behind its own
            if is_final:
                self._done.add(pod.name)
                self._unsure.add(pod.created_s)  # its driver may outlive it
        return all(pod.name in self._done for pod in pods)

    def _has_read(self, pod: LogPod, *, follow: bool, is_last: bool) -> bool:
        """Prints a pod's new lines; False where it does not answer now, and may yet.

        A pod that has ended, or has a successor, is given up after a while, and what it has not shown comes from the store.
        """
        log = self._log_of(pod)
        num_before, now = self.num_lines, time.monotonic()
        try:
            if not self._read(log, follow=follow) and not follow:
                self._gone.add(pod.created_s)
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
            self._given_up = ClusterError(
                f"pod {pod.name} cannot be read, and there is no store that has its last lines: {error}",
                fix="name the store with --store, or ask again when the pod's node is back",
            )
            if self.store is None:
                raise self._given_up from error
            note(f"pod {pod.name} is given up after {self.silent_s:g} s: the rest of its lines comes from the store")
            self._done.add(pod.name)
            self._gone.add(pod.created_s)
        self._silent_since.pop(pod.name, None)
        return True

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
        """Prints new lines; False where there is no such log: a pod that goes is the next look's business.

        Raises:
            ClusterError: the stream broke off, or there is none.
        """
        try:
            for line in log.lines(follow=follow):
                self._printed.append(line)
                self._printed_of_s = log.pod.created_s
                self._emit(line)
        except ClusterError as error:
            if error.status != HTTP_NOT_FOUND and "is waiting to start" not in str(error):
                raise
            return False
        return True

    def _catch_up(self, before_s: float = math.inf, *, begins: bool = False, is_final: bool = False) -> None:
        """Prints what pods did not show that are gone, from the store.

        Args:
            before_s: when the pod was made that comes next.
            begins: it prints now, so that no line of theirs can come behind this.
            is_final: no pod will print any more.

        Raises:
            StoreUnavailable: nothing was printed; ask again. After a while the store is given up.
            ClusterError: a pod was given up, and at the end the store has nothing of the run.
        """
        gone = {created_s for created_s in self._gone | self._unsure if created_s < before_s}
        if is_final or gone - (set() if begins else self._looked_up):
            if self.store is not None:
                if not self._has_answered(self.store, before_s, is_final=is_final):
                    gone = gone if begins else set()  # else the next look asks again
            elif (self._gone & gone) - self._looked_up and not self.is_one_pod:
                note(
                    "a pod went before it was read to its end, and there is no store that has its last lines: name it with --store"
                )
            self._looked_up |= gone
        if begins:
            self._gone -= gone
            self._unsure -= gone

    def _has_answered(self, store: Store, before_s: float, *, is_final: bool) -> bool:
        """Whether the store's lines are printed; False where they are given up."""
        asked_s = time.monotonic()
        try:
            num_attempts = self._print_stored(store, before_s)
        except StoreUnavailable as error:
            if (away := self._store_away) is None or asked_s - away.asked_s > SILENT_S:  # of an earlier time
                away = self._store_away = Outage(asked_s, asked_s)
            away.asked_s = time.monotonic()
            if away.asked_s - away.since_s < self.silent_s:
                raise
            if not away.is_said:
                note(f"the store is away for {self.silent_s:g} s: lines that no pod showed may be missing: {error}")
            away.is_said = True
            return False
        self._store_away = None
        if is_final and self._given_up is not None and not num_attempts:
            raise self._given_up
        return True

    def _print_stored(self, store: Store, before_s: float) -> int:
        """Returns of how many attempts the store knows."""
        attempts = stored_lines(store, before_s)
        # No line of a later pod was printed yet: an equal one of its attempts is not the last that was.
        next_s = min(
            (created_s for created_s in self._seen.values() if created_s > self._printed_of_s), default=math.inf
        )
        reached = [line for claimed_s, lines in attempts if claimed_s < next_s for line in lines]
        later = [line for claimed_s, lines in attempts if claimed_s >= next_s for line in lines]
        behind = missing(list(self._printed), reached)
        is_tail_placed = self.tail is None or len(behind) < len(reached)
        if not is_tail_placed and self._printed and not any(created_s < before_s for created_s in self._gone):
            behind = []  # the tail holds a submitter's own lines only, and what lies before them was not asked for
        found = [*behind, *later]
        if self.tail is not None and not self._printed:
            found = found[-self.tail :]
        for line in found:
            self._printed.append(line)
            self._emit(line)
        if found:
            self._printed_of_s = max(created_s for created_s in (0.0, *self._seen.values()) if created_s < before_s)
        return len(attempts)

    def _emit(self, line: str) -> None:
        self.out(redact(line))
        self.num_lines += 1


def stored_lines(store: Store, before_s: float) -> list[tuple[float, list[str]]]:
    """When each attempt was claimed that was claimed before a time, by the store's clock, and its driver's log as far as it lies there.

    A folder without a claim counts with the attempt before it.
    """
    listing = Listing(store)
    claimed_s, attempts = 0.0, []
    for attempt in listing.folders():
        owner = listing.objects.get(f"{attempt_prefix(attempt)}/{OWNER_FILE}")
        claimed_s = max(claimed_s, owner.modified_s if owner is not None else 0.0)
        if claimed_s < before_s:
            data = b"".join(store.get(key) for key in listing.parts(attempt, LOG_FILE))
            # Only what ends a line of a pod's log, whatever a model wrote.
            attempts.append((claimed_s, data.decode(errors="replace").removesuffix("\n").split("\n") if data else []))
    return attempts


def missing(printed: Sequence[str], stored: Sequence[str]) -> Sequence[str]:
    """The stored lines after the last one that was printed; all where none was.

    A line may occur many times: of the places where it could be, the one with the most equal lines before it is meant.
    Lines that only the pod printed (the submitter's own) are passed over.
    """
    known = set(stored)
    shared = [line for line in printed if line in known]
    if not shared:
        return stored

    def num_equal(index: int) -> int:
        count = 0
        while count < min(NUM_CONTEXT, index + 1, len(shared)) and stored[index - count] == shared[-1 - count]:
            count += 1
        return count

    places = [index for index, line in enumerate(stored) if line == shared[-1]]
    return stored[max(places, key=lambda index: (num_equal(index), index)) + 1 :]
