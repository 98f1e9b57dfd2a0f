"""A run's log from the pods of its submitter, followed over reconnects, new pods and new Ray clusters.

The kubelet stamps every line. The API server ends a stream after a while. The next stream begins a few seconds before the
last stamp, and lines that were printed before are left out by stamp and text.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

from opd.redaction import redact
from opdctl.console import note
from opdctl.kube.client import HTTP_NOT_FOUND, ROLE_LABEL, RUN_LABEL, ClusterError, KubeApi, unix_s, wait_until
from opdctl.kube.rayjob import read_job

SUBMITTER = "submitter"
"""The role of the pods that print the log, and the name of their container."""
# A silent connection is opened anew after this long.
READ_TIMEOUT_S = 30.0
# `sinceTime` has whole seconds, and stamps of stdout and stderr cross by less than one second.
OVERLAP_S = 3
POLL_S = 2.0
# A kubelet that restarts is back within seconds; a pod that has ended is given up after this long.
SILENT_S = 60.0


class PodLog:
    """Lines of one pod's log over any number of streams; each comes out once, without its stamp.

    Args:
        tail: the number of last lines to begin with.
    """

    def __init__(self, api: KubeApi, name: str, *, tail: int | None = None):
        self.api, self.name, self.tail = api, name, tail
        self._recent: dict[str, float] = {}
        self._first_s = 0.0

    def lines(self, *, follow: bool) -> Iterator[str]:
        """Yield new lines until the stream ends; the half line of a broken stream comes whole with the next stream.

        A ClusterError means that the stream broke or cannot be opened; a further call continues.
        """
        query: dict[str, str | int] = {"container": SUBMITTER, "timestamps": "true"}
        query |= {"follow": "true"} if follow else {}
        if self._recent:
            since_s = math.floor(max(self._recent.values())) - OVERLAP_S
            self._recent = {line: stamp_s for line, stamp_s in self._recent.items() if stamp_s >= since_s}
            query["sinceTime"] = datetime.fromtimestamp(since_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        elif self.tail:
            query["tailLines"] = self.tail
        rest = b""
        for chunk in self.api.stream(self.api.path("pods", self.name, "log"), read_timeout_s=READ_TIMEOUT_S, **query):
            *whole, rest = (rest + chunk).split(b"\n")
            yield from self._new(whole)
        if rest and not follow:  # an ended container's last words need no line end
            yield from self._new([rest])

    def _new(self, lines: list[bytes]) -> Iterator[str]:
        """Yield the lines that did not come before, and that are not older than the first line of a tail."""
        for line in (data.decode(errors="replace") for data in lines):
            stamp, _, text = line.partition(" ")
            stamp_s = unix_s(stamp)
            if self.tail and not self._recent:
                self._first_s = stamp_s
            if line not in self._recent and stamp_s >= self._first_s:
                self._recent[line] = stamp_s
                yield text


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
        for name in self.pods():
            self._read(name, follow=False)
        return self.num_lines

    def follow(self) -> int:
        """Print until the RayJob has ended or is gone and its pods are read; wait for an unreachable API server."""

        def look() -> int | str:
            tree = self.api.find(self.api.path("rayjobs", self.run_id))
            is_over = tree is None or not read_job(tree).is_live
            awaited = self._read_pods(is_over=is_over)
            self.tail = None  # later pods are read whole
            return self.num_lines if is_over and awaited is None else awaited or ""

        return wait_until(look, pause=lambda: time.sleep(self.poll_s))

    def pods(self) -> dict[str, bool]:
        """Return whether each pod that prints the log has ended, oldest first: one a submission."""
        pods = self.api.list(self.api.path("pods"), selector=f"{RUN_LABEL}={self.run_id},{ROLE_LABEL}={SUBMITTER}")
        pods.sort(key=lambda pod: (unix_s(pod["metadata"].get("creationTimestamp")), pod["metadata"]["name"]))
        return {pod["metadata"]["name"]: pod["status"].get("phase") in ("Succeeded", "Failed") for pod in pods}

    def _read_pods(self, *, is_over: bool) -> str | None:
        """Read every pod as far as possible; return the reason to wait for one, None where there is none."""
        pods = self.pods()
        for name in sorted(self._logs.keys() - self._done - pods.keys()):
            self._lose(name, "went before it was read to its end")
        for name, has_ended in pods.items():
            if name in self._done:
                continue
            is_final = has_ended or is_over
            try:
                self._read(name, follow=not is_final)
            except ClusterError as error:
                if not error.is_passing:
                    raise
                since_s = self._silent_since.setdefault(name, time.monotonic())
                is_needed = not is_final and name == [*pods][-1]
                if is_needed or time.monotonic() - since_s < self.silent_s:
                    # The lines of the next pod come after its own; a broken stream is opened again.
                    return f"pod {name} cannot be read, waiting for it: {error}" if error.status else ""
                self._lose(name, f"is given up after {self.silent_s:g} s")
            else:
                self._silent_since.pop(name, None)
                self._done |= {name} if is_final else set()
        return None

    def _lose(self, name: str, why: str) -> None:
        self._done.add(name)
        note(f"pod {name} {why}: `opdctl logs {self.run_id}` reads the rest from the store")

    def _read(self, name: str, *, follow: bool) -> None:
        """Print new lines; a container that is gone or has not started has none."""
        is_new = name not in self._logs
        log = self._logs.setdefault(name, PodLog(self.api, name, tail=self.tail))
        try:
            for line in log.lines(follow=follow):
                if is_new and self.num_lines:
                    self.out(f"===== pod {name} =====")
                is_new = False
                self.out(redact(line))
                self.num_lines += 1
        except ClusterError as error:
            if error.status != HTTP_NOT_FOUND and "is waiting to start" not in str(error):
                raise
        if is_new:
            del self._logs[name]  # it has printed nothing yet
