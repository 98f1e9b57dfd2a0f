"""A server that speaks the API's log endpoint and breaks every stream, and a thread that follows a run over it."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from opdctl.console import ToolError
from opdctl.kube.client import KubeApi
from opdctl.logs.pods import PodFollower


class Cluster:
    """What the server shows: a RayJob, and pods whose logs grow."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job: dict[str, Any] | None = job
        self.pods: dict[str, dict[str, Any]] = {}
        self.logs: dict[str, list[str]] = {}
        self.num_shown: dict[str, int] = {}
        self.num_streams = 0
        self.is_away = False
        self.silent: set[str] = set()  # pods whose kubelet does not answer
        self.num_refused = 0
        self._clock_s = datetime(2026, 11, 21, 10, 0, 0, tzinfo=UTC).timestamp()

    def begin(self, pod: dict[str, Any], *texts: str) -> None:
        """A pod with the first lines of its log, which is there before the pod: a look may come in between."""
        name = pod["metadata"]["name"]
        self.logs[name] = []
        self.add(name, *texts)
        self.pods[name] = pod

    def add(self, pod: str, *texts: str) -> None:
        """Lines a fifth of a second apart, some sharing a stamp, so that streams overlap."""
        for number, text in enumerate(texts):
            self._clock_s += 0.2 if number % 3 else 0.0
            stamp = datetime.fromtimestamp(self._clock_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
            self.logs[pod].append(f"{stamp} {text}")


class Handler(BaseHTTPRequestHandler):
    cluster: ClassVar[Cluster]
    lines_per_stream = 4

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        log = re.search(r"/pods/([^/]+)/log$", url.path)
        if self.cluster.is_away:
            self.close_connection = True
        elif log and log[1] in self.cluster.silent:
            self.cluster.num_refused += 1
            message = (
                'Get "https://10.0.0.1:10250/containerLogs/opd": dial tcp 10.0.0.1:10250: connect: connection refused'
            )
            self._json({"kind": "Status", "message": message, "reason": "InternalError"}, status=500)
        elif log:
            self._log(log[1], query)
        elif "/rayjobs/" in url.path:
            self._json(self.cluster.job)
        else:
            items = list(self.cluster.pods.values()) if url.path.endswith("/pods") else []
            self._json({"items": items, "metadata": {}})

    def _json(self, tree: dict[str, Any] | None, *, status: int = 200) -> None:
        body = json.dumps(tree or {"reason": "NotFound", "message": "not found"}).encode()
        self.send_response(status if tree is not None else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _log(self, pod: str, query: dict[str, str]) -> None:
        """From `sinceTime` on; a followed stream ends after a few new lines, every other time in the middle of one."""
        if pod not in self.cluster.pods or pod not in self.cluster.logs:
            self._json(None)
            return
        self.cluster.num_streams += 1
        is_cut = self.cluster.num_streams % 2 == 0
        since = query.get("sinceTime", "").replace("Z", ".000000000Z")
        lines = self.cluster.logs[pod]
        if "follow" in query:
            self.cluster.num_shown[pod] = min(self.cluster.num_shown.get(pod, 0) + self.lines_per_stream, len(lines))
            lines = lines[: self.cluster.num_shown[pod]]
        lines = [line for line in lines if line.partition(" ")[0] >= since][-int(query.get("tailLines", 0)) :]
        body = "".join(f"{line}\n" for line in lines).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if is_cut and "follow" in query:
            body = body[:-3]  # less than promised
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s, "it never came so far"
        time.sleep(0.01)


def following_of(
    state: Cluster, api: KubeApi, *, silent_s: float = 60.0, tail: int | None = None
) -> tuple[threading.Thread, list[str], list[ToolError]]:
    """A thread that follows run r, what it prints, and what it ends with."""
    printed: list[str] = []
    errors: list[ToolError] = []
    follower = PodFollower(api, "r", "K8sJobMode", tail=tail, poll_s=0.01, silent_s=silent_s, out=printed.append)

    def follow() -> None:
        try:
            follower.follow()
        except ToolError as error:
            errors.append(error)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    return thread, printed, errors


def wait_for(following: threading.Thread) -> None:
    following.join(60)
    assert not following.is_alive(), "it goes on"


def succeed(state: Cluster) -> None:
    assert state.job is not None
    state.job["status"] = {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"}


def end(state: Cluster, following: threading.Thread) -> None:
    """The run succeeds, and following comes to its end."""
    succeed(state)
    wait_for(following)


FIRST, SECOND, THIRD = ([f"{name}{number}" for number in range(1, 5)] for name in "abc")
