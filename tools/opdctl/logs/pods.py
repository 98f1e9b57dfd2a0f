"""A run's log from the pods of its submitter, followed over reconnects, new pods and new Ray clusters.

The kubelet stamps every line. The API server ends a stream after a while; the next stream has the lines after the last stamp.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from opd.redaction import redact
from opdctl.console import note
from opdctl.kube.client import HTTP_NOT_FOUND, ROLE_LABEL, RUN_LABEL, ClusterError, KubeApi, unix_s, wait_until
from opdctl.kube.rayjob import read_job

SUBMITTER = "submitter"
"""The role of the pods that print the log, and the name of their container."""
# A silent connection is opened anew after this long.
READ_TIMEOUT_S = 30.0
POLL_S = 2.0


@dataclass
class PodFollower:
    """Prints a run's log from its pods.

    Attributes:
        tail: the number of last lines of the pods that the first look finds.
    """

    api: KubeApi
    run_id: str
    tail: int | None = None
    poll_s: float = POLL_S
    num_lines: int = 0
    # By pod: the stamp of its newest line.
    _last: dict[str, str] = field(default_factory=dict)

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
            problem = ""
            for name, has_ended in self.pods().items():
                try:
                    self._read(name, follow=not (has_ended or is_over))
                except ClusterError as error:
                    if not error.status:
                        return ""  # the stream broke off: the next look opens it again
                    if not error.is_passing:
                        raise
                    problem = f"pod {name} cannot be read: `opdctl logs {self.run_id}` reads the rest from the store"
            self.tail = None  # later pods are read whole
            if is_over and problem:
                note(problem)
            return self.num_lines if is_over else problem

        return wait_until(look, pause=lambda: time.sleep(self.poll_s))

    def pods(self) -> dict[str, bool]:
        """Return whether each pod that prints the log has ended, oldest first: one a submission."""
        pods = self.api.list(self.api.path("pods"), selector=f"{RUN_LABEL}={self.run_id},{ROLE_LABEL}={SUBMITTER}")
        pods.sort(key=lambda pod: (unix_s(pod["metadata"].get("creationTimestamp")), pod["metadata"]["name"]))
        return {pod["metadata"]["name"]: pod["status"].get("phase") in ("Succeeded", "Failed") for pod in pods}

    def _read(self, name: str, *, follow: bool) -> None:
        """Print new lines until the stream ends; a container that is gone or has not started has none."""
        is_new = name not in self._last
        try:
            for line in self._lines(name, follow=follow):
                if is_new and self.num_lines:
                    print(f"===== pod {name} =====")
                is_new = False
                print(redact(line), flush=True)
                self.num_lines += 1
        except ClusterError as error:
            if error.status != HTTP_NOT_FOUND and "is waiting to start" not in str(error):
                raise

    def _lines(self, name: str, *, follow: bool) -> Iterator[str]:
        """Yield lines without their stamps; the half line of a broken stream comes whole with the next stream."""
        query: dict[str, str | int] = {"container": SUBMITTER, "timestamps": "true"}
        query |= {"follow": "true"} if follow else {}
        if last := self._last.get(name, ""):
            query["sinceTime"] = last  # the API server takes whole seconds of it
        elif self.tail:
            query["tailLines"] = self.tail
        stream = self.api.stream(self.api.path("pods", name, "log"), read_timeout_s=READ_TIMEOUT_S, **query)
        rest = b""
        for chunk in chain(stream, [] if follow else [b"\n"]):  # an ended container's last words need no line end
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                stamp, _, text = line.decode(errors="replace").partition(" ")
                if stamp > last:
                    self._last[name] = max(stamp, self._last.get(name, ""))
                    yield text
