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


@dataclass
class PodFollower:
    """Prints a run's log from its pods.

    Attributes:
        tail: the number of last lines of the pods that the first look finds.
        out: takes each line.
    """

    api: KubeApi
    run_id: str
    tail: int | None = None
    poll_s: float = POLL_S
    out: Callable[[str], None] = field(default_factory=lambda: partial(print, flush=True))
    num_lines: int = 0
    # By pod: the newest lines, with their stamps in seconds.
    _recent: dict[str, dict[str, float]] = field(default_factory=dict)
    _done: set[str] = field(default_factory=set)

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
            pods = self.pods()
            for name in [name for name in pods if name not in self._done]:
                is_final = pods[name] or is_over
                try:
                    self._read(name, follow=not is_final)
                except ClusterError as error:
                    if not error.status:
                        return ""  # the stream broke off: the next look opens it again
                    if not error.is_passing or (name == [*pods][-1] and not is_over):
                        raise
                    note(f"pod {name} cannot be read: `opdctl logs {self.run_id}` reads the rest from the store")
                    is_final = True
                self._done |= {name} if is_final else set()
            self.tail = None  # later pods are read whole
            return self.num_lines if is_over else ""

        return wait_until(look, pause=lambda: time.sleep(self.poll_s))

    def pods(self) -> dict[str, bool]:
        """Return whether each pod that prints the log has ended, oldest first: one a submission."""
        pods = self.api.list(self.api.path("pods"), selector=f"{RUN_LABEL}={self.run_id},{ROLE_LABEL}={SUBMITTER}")
        pods.sort(key=lambda pod: (unix_s(pod["metadata"].get("creationTimestamp")), pod["metadata"]["name"]))
        return {pod["metadata"]["name"]: pod["status"].get("phase") in ("Succeeded", "Failed") for pod in pods}

    def _read(self, name: str, *, follow: bool) -> None:
        """Print new lines until the stream ends; a container that is gone or has not started has none."""
        is_new = name not in self._recent
        try:
            for line in self._lines(name, follow=follow):
                if is_new and self.num_lines:
                    self.out(f"===== pod {name} =====")
                is_new = False
                self.out(redact(line))
                self.num_lines += 1
        except ClusterError as error:
            if error.status != HTTP_NOT_FOUND and "is waiting to start" not in str(error):
                raise

    def _lines(self, name: str, *, follow: bool) -> Iterator[str]:
        """Yield lines without their stamps, each once; the half line of a broken stream comes whole with the next stream."""
        query: dict[str, str | int] = {"container": SUBMITTER, "timestamps": "true"}
        query |= {"follow": "true"} if follow else {}
        recent = self._recent.get(name, {})
        first_s = min(recent.values(), default=0.0) if self.tail else 0.0  # older lines are not of the tail
        if recent:
            since_s = math.floor(max(recent.values())) - OVERLAP_S
            recent = {line: stamp_s for line, stamp_s in recent.items() if stamp_s >= since_s or stamp_s == first_s}
            query["sinceTime"] = datetime.fromtimestamp(since_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        elif self.tail:
            query["tailLines"] = self.tail
        rest = b""
        for chunk in self.api.stream(self.api.path("pods", name, "log"), read_timeout_s=READ_TIMEOUT_S, **query):
            *whole, rest = (rest + chunk).split(b"\n")
            for line in (data.decode(errors="replace") for data in whole):
                stamp, _, text = line.partition(" ")
                if line not in recent and (stamp_s := unix_s(stamp)) >= first_s:
                    recent[line] = stamp_s
                    self._recent[name] = recent
                    yield text
        if rest and not follow:  # an ended container's last words need no line end
            yield rest.decode(errors="replace").partition(" ")[2]
