"""`logs -f` over a server that speaks the API's log endpoint and breaks every stream: each line once, in order."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest
from kubernetes import client

from opd.errors import StoreUnavailable
from opd.store.base import ObjectInfo, Store
from opd.store.local import LocalStore
from opd.store.opening import open_store
from opdctl.commands.logs import logs, of_pod
from opdctl.errors import ToolError
from opdctl.kube.client import KubeApi
from opdctl.kube.errors import StreamBroken
from opdctl.kube.podlogs import PodLog, find_log_pods, find_pod
from opdctl.kube.run import ClusterRun
from opdctl.kube.waiting import pod_lines
from opdctl.logs.from_pods import PodFollower
from opdctl.runs import locate
from opdctl.runs.locate import Found


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


@pytest.fixture
def cluster(rayjob: Callable) -> Iterator[tuple[Cluster, KubeApi]]:
    state = Cluster(rayjob(jobDeploymentStatus="Running", jobStatus="RUNNING"))
    handler = type("Own", (Handler,), {"cluster": state})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        configuration = client.Configuration(host=f"http://127.0.0.1:{server.server_address[1]}")
        configuration.retries = False
        yield state, KubeApi(client.ApiClient(configuration), namespace="opd", context=None)
        server.shutdown()


@pytest.fixture
def submitter(pod: Callable) -> Callable[..., dict[str, Any]]:
    def make(name: str, minute: int, *, phase: str = "Running") -> dict[str, Any]:
        status = {"name": "submitter", "state": {"running": {}}}
        tree = pod("submitter", name=name, phase=phase, containerStatuses=[status])
        tree["metadata"]["creationTimestamp"] = f"2026-11-21T10:{minute:02d}:00Z"
        return tree

    return make


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s, "it never came so far"
        time.sleep(0.01)


def test_every_line_comes_once_over_broken_streams_a_lost_pod_an_api_server_away_and_the_store(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, tmp_path: Path
) -> None:
    state, api = cluster
    first = [f"step {number}/40" for number in range(20)]
    second = [f"step {number}/40 again" for number in range(15, 40)]
    state.begin(submitter("s1", 1), "opd.pods.submit: hello", *first[:15])
    following, printed, errors = following_of(state, api, tmp_path, attempts={1: first})
    until(lambda: first[14] in printed)
    del state.pods["s1"]  # with its last five lines: the store has them
    until(lambda: first[19] in printed)
    keep(tmp_path, 2, second)
    state.begin(submitter("s2", 2), "opd.pods.submit: hello", *second[:10])
    until(lambda: second[9] in printed)
    state.is_away = True
    time.sleep(0.1)
    state.add("s2", *second[10:])
    state.is_away = False
    until(lambda: second[-1] in printed)
    state.add("s2", "opd.pods.submit: job r: SUCCEEDED")
    state.pods["s2"] = submitter("s2", 2, phase="Succeeded")
    end(state, following)
    assert (printed, errors) == ([
        "opd.pods.submit: hello", *first, "===== pod s2 =====", "opd.pods.submit: hello", *second,
        "opd.pods.submit: job r: SUCCEEDED",
    ], [])  # fmt: skip
    assert state.num_streams > 3, "streams were broken"


def test_a_run_whose_pods_are_gone_is_read_from_the_store(cluster: tuple[Cluster, KubeApi], tmp_path: Path) -> None:
    state, api = cluster
    state.job = None
    following, printed, errors = following_of(state, api, tmp_path, attempts={1: ["one", "two"]})
    wait_for(following)
    assert (printed, errors) == (["one", "two"], [])


def keep(folder: Path, number: int, lines: list[str]) -> None:
    """What the store of run r holds of an attempt: its log, and a claim of half a minute after the submitter of the same number."""
    path = folder / "r" / "attempts" / f"{number:04d}"
    path.mkdir(parents=True, exist_ok=True)
    (path / "owner.json").write_text("{}")
    claimed_s = datetime(2026, 11, 21, 10, number, 30, tzinfo=UTC).timestamp()
    os.utime(path / "owner.json", (claimed_s, claimed_s))
    (path / "driver.log").write_text("".join(f"{line}\n" for line in lines))


class Shaky(LocalStore):
    """A store that goes away."""

    is_away = False

    def list(self, prefix: str) -> list[ObjectInfo]:
        if self.is_away:
            raise StoreUnavailable("no route to host")
        return super().list(prefix)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What following notes on stderr. `capsys` may not be read meanwhile: it loses what another thread prints at that moment."""
    notes: list[str] = []
    monkeypatch.setattr("opdctl.logs.from_pods.note", notes.append)
    return notes


def following_of(
    state: Cluster, api: KubeApi, folder: Path, *, attempts: dict[int, list[str]], silent_s: float = 60.0,
    store: Store | None = None, tail: int | None = None,
) -> tuple[threading.Thread, list[str], list[ToolError]]:  # fmt: skip
    """A thread that follows run r, what it prints, and what it ends with; the store, if any, has the attempts' lines."""
    for number, lines in attempts.items():
        keep(folder, number, lines)
    printed: list[str] = []
    errors: list[ToolError] = []
    follower = PodFollower(
        api,
        "r",
        lambda: find_log_pods(api, "r", "K8sJobMode"),
        store=store or (open_store(folder / "r") if attempts else None),
        tail=tail,
        poll_s=0.01,
        silent_s=silent_s,
        out=printed.append,
    )

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


def test_a_kubelet_that_is_away_at_the_runs_end_is_waited_for(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    state, api = cluster
    state.begin(submitter("s1", 1), *FIRST[:2])
    following, printed, errors = following_of(state, api, tmp_path, attempts={1: FIRST})
    until(lambda: FIRST[1] in printed)
    state.silent.add("s1")
    until(lambda: state.num_refused > 2)
    succeed(state)
    state.add("s1", *FIRST[2:], "opd.pods.submit: job r: SUCCEEDED")  # which the store has not
    num_refused = state.num_refused
    until(lambda: state.num_refused > num_refused + 2)
    state.silent.clear()
    wait_for(following)
    assert (printed, errors) == ([*FIRST, "opd.pods.submit: job r: SUCCEEDED"], [])
    assert capsys.readouterr().err.count("pod s1 cannot be read, following goes on when it can") == 1


def test_the_lines_of_a_pod_that_is_given_up_come_from_the_store_before_those_of_its_successor(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    state, api = cluster
    state.begin(submitter("s1", 1), *FIRST[:2])
    following, printed, errors = following_of(state, api, tmp_path, silent_s=0.1, attempts={1: FIRST, 2: SECOND})
    until(lambda: FIRST[1] in printed)
    state.silent.add("s1")
    state.begin(submitter("s2", 2), *SECOND)
    until(lambda: SECOND[-1] in printed)
    end(state, following)
    assert (printed, errors) == ([*FIRST, "===== pod s2 =====", *SECOND], [])
    assert "pod s1 is given up" in capsys.readouterr().err


@pytest.mark.parametrize("has_store", [False, True], ids=["no store", "a store that has nothing of the run"])
def test_a_pod_that_stays_silent_and_no_store_is_an_error_instead_of_an_end_that_looks_whole(
    has_store: bool, cluster: tuple[Cluster, KubeApi], submitter: Callable, tmp_path: Path
) -> None:
    state, api = cluster
    state.begin(submitter("s1", 1), *FIRST[:2])
    store = LocalStore(tmp_path / "other" / "r") if has_store else None
    following, printed, errors = following_of(state, api, tmp_path, silent_s=0.1, attempts={}, store=store)
    until(lambda: FIRST[1] in printed)
    state.silent.add("s1")
    end(state, following)
    assert printed == FIRST[:2]
    assert ["pod s1 cannot be read, and there is no store that has its last lines" in str(e) for e in errors] == [True]


def test_the_lines_of_a_pod_that_was_silent_from_the_beginning_come_from_the_store_before_its_successor_claims(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, tmp_path: Path
) -> None:
    state, api = cluster
    state.begin(submitter("s1", 1))
    state.begin(submitter("s2", 2))
    state.silent.add("s1")
    state.add("s2", *SECOND)
    following, printed, errors = following_of(state, api, tmp_path, silent_s=0.1, attempts={1: FIRST})
    until(lambda: SECOND[-1] in printed)
    end(state, following)
    assert (printed, errors) == ([*FIRST, "===== pod s2 =====", *SECOND], [])


def test_the_lines_of_a_pod_that_goes_while_an_older_one_is_waited_for_come_from_the_store(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, tmp_path: Path
) -> None:
    state, api = cluster
    state.silent.add("s1")
    for number, lines in ((1, FIRST), (2, SECOND)):
        state.begin(submitter(f"s{number}", number), *lines)
    following, printed, errors = following_of(state, api, tmp_path, silent_s=3, attempts={1: FIRST, 2: SECOND})
    until(lambda: state.num_refused > 0)
    state.begin(submitter("s3", 3), *THIRD)
    del state.pods["s2"]
    until(lambda: THIRD[-1] in printed)
    end(state, following)
    assert (printed, errors) == ([*FIRST, *SECOND, "===== pod s3 =====", *THIRD], [])


def test_an_equal_line_of_a_later_pods_attempt_is_not_taken_for_the_last_that_was_printed(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, tmp_path: Path
) -> None:
    state, api = cluster
    state.begin(submitter("s1", 1), "start")
    attempts = {1: ["start", *FIRST], 2: ["start", *SECOND], 3: THIRD}
    following, printed, errors = following_of(state, api, tmp_path, silent_s=0.1, attempts=attempts)
    until(lambda: "start" in printed)
    state.silent |= {"s1", "s2"}
    state.begin(submitter("s2", 2))
    state.begin(submitter("s3", 3), *THIRD)
    until(lambda: THIRD[-1] in printed)
    end(state, following)
    shown = [line for line in printed if not line.startswith("=")]
    assert (shown, errors) == (["start", *FIRST, "start", *SECOND, *THIRD], [])


def test_a_store_that_is_away_is_waited_for_with_the_reason_before_the_next_pods_lines(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, tmp_path: Path, said: list[str]
) -> None:
    state, api = cluster
    store = Shaky(tmp_path / "r")
    state.begin(submitter("s1", 1), *FIRST[:2])
    following, printed, errors = following_of(state, api, tmp_path, attempts={1: FIRST}, store=store)
    until(lambda: FIRST[1] in printed)
    store.is_away = True
    state.logs["s2"] = []
    state.add("s2", *SECOND)
    state.pods = {"s2": submitter("s2", 2)}
    until(lambda: any("the store is away" in line for line in said))
    assert printed == FIRST[:2]
    store.is_away = False
    until(lambda: SECOND[-1] in printed)
    end(state, following)
    assert (printed, errors) == ([*FIRST, "===== pod s2 =====", *SECOND], [])
    assert said == [
        "the store is away, which has lines that no pod shows, following goes on when it is back, or after 60 s: no route to host",
        "the store is back",
    ]


def test_a_store_that_stays_away_at_the_end_is_given_up_as_a_pod_is(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, tmp_path: Path, said: list[str]
) -> None:
    state, api = cluster
    store = Shaky(tmp_path / "r")
    store.is_away = True
    state.begin(submitter("s1", 1, phase="Succeeded"), *FIRST)
    succeed(state)
    following, printed, errors = following_of(state, api, tmp_path, silent_s=1, attempts={1: FIRST}, store=store)
    wait_for(following)
    assert (printed, errors) == (FIRST, [])
    assert said == [
        "the store is away, following goes on when it is back, or after 1 s: no route to host",
        "the store is away for 1 s: lines that no pod showed may be missing: no route to host",
    ]


def test_a_store_that_stays_away_keeps_the_next_pods_lines_for_a_while_only_and_is_asked_again_later(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, tmp_path: Path, said: list[str]
) -> None:
    state, api = cluster
    store = Shaky(tmp_path / "r")
    state.begin(submitter("s1", 1), *FIRST[:2])
    attempts = {1: FIRST, 2: [*SECOND, *THIRD]}
    following, printed, errors = following_of(state, api, tmp_path, silent_s=1, attempts=attempts, store=store)
    until(lambda: FIRST[1] in printed)
    store.is_away = True
    state.logs["s2"] = []
    state.add("s2", *SECOND)
    state.pods = {"s2": submitter("s2", 2)}
    until(lambda: SECOND[-1] in printed)
    assert printed == [*FIRST[:2], "===== pod s2 =====", *SECOND]
    store.is_away = False
    end(state, following)
    assert (printed, errors) == ([*FIRST[:2], "===== pod s2 =====", *SECOND, *THIRD], [])
    assert said == [
        "the store is away, which has lines that no pod shows, following goes on when it is back, or after 1 s: no route to host",
        "the store is away for 1 s: lines that no pod showed may be missing: no route to host",
        "the store is back",
    ]


def test_what_a_driver_prints_after_its_submitter_was_read_to_its_end_comes_before_the_lines_of_the_next_pod(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, tmp_path: Path, said: list[str]
) -> None:
    state, api = cluster
    state.begin(submitter("s1", 1, phase="Failed"), *FIRST[:2])
    following, printed, errors = following_of(state, api, tmp_path, attempts={1: FIRST[:3]})
    until(lambda: FIRST[2] in printed)
    keep(tmp_path, 1, FIRST)
    state.begin(submitter("s2", 2), *SECOND)
    until(lambda: SECOND[-1] in printed)
    end(state, following)
    assert (printed, errors, said) == ([*FIRST, "===== pod s2 =====", *SECOND], [], [])


def test_what_a_driver_prints_after_its_pod_went_comes_before_the_lines_of_the_next_pod(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, tmp_path: Path
) -> None:
    state, api = cluster
    state.begin(submitter("s1", 1), *FIRST[:1])
    following, printed, errors = following_of(state, api, tmp_path, attempts={1: FIRST[:2]})
    until(lambda: FIRST[0] in printed)
    state.pods = {}
    until(lambda: FIRST[1] in printed)
    keep(tmp_path, 1, FIRST)
    state.logs["s2"] = []
    state.add("s2", *SECOND)
    state.pods = {"s2": submitter("s2", 2)}
    until(lambda: SECOND[-1] in printed)
    end(state, following)
    assert (printed, errors) == ([*FIRST, "===== pod s2 =====", *SECOND], [])


def test_the_lines_of_an_ended_pod_that_goes_between_the_look_at_it_and_its_reading_come_from_the_store(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, tmp_path: Path
) -> None:
    state, api = cluster
    state.logs["s2"] = []
    state.add("s2", *SECOND)
    state.pods = {"s1": submitter("s1", 1, phase="Failed"), "s2": submitter("s2", 2)}
    following, printed, errors = following_of(state, api, tmp_path, attempts={1: FIRST, 2: SECOND})
    until(lambda: SECOND[-1] in printed)
    end(state, following)
    assert (printed, errors) == ([*FIRST, "===== pod s2 =====", *SECOND], [])


def test_the_lines_of_a_pod_that_came_and_went_while_the_cluster_was_away_come_from_the_store(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, tmp_path: Path, said: list[str]
) -> None:
    state, api = cluster
    state.begin(submitter("s1", 1, phase="Failed"), *FIRST)
    following, printed, errors = following_of(state, api, tmp_path, attempts={1: FIRST})
    until(lambda: FIRST[-1] in printed)
    state.is_away = True
    until(lambda: any("the cluster is away" in line for line in said))
    keep(tmp_path, 2, SECOND)
    keep(tmp_path, 3, THIRD)
    state.begin(submitter("s3", 3), *THIRD)
    state.is_away = False
    until(lambda: THIRD[-1] in printed)
    end(state, following)
    assert (printed, errors) == ([*FIRST, *SECOND, "===== pod s3 =====", *THIRD], [])


def test_a_stored_line_ends_where_that_of_a_pod_does_whatever_a_model_wrote(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, tmp_path: Path
) -> None:
    state, api = cluster
    lines = ["step 1", "answer: a\u2028b", "step 2"]
    state.begin(submitter("s1", 1), *lines[:2])
    following, printed, errors = following_of(state, api, tmp_path, attempts={1: lines})
    until(lambda: len(printed) == 2)
    state.pods = {}
    end(state, following)
    assert (printed, errors) == (["step 1", r"answer: a\u2028b", "step 2"], [])


def test_that_a_pods_last_lines_are_lost_is_said_where_there_is_no_store(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    state, api = cluster
    state.begin(submitter("s1", 1), *FIRST)
    following, printed, _ = following_of(state, api, tmp_path, attempts={})
    until(lambda: FIRST[-1] in printed)
    state.pods = {}
    end(state, following)
    assert capsys.readouterr().err.count("a pod went before it was read to its end, and there is no store") == 1


def test_a_pod_that_was_read_whole_is_not_called_lost_after_the_cluster_was_away(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, tmp_path: Path, said: list[str]
) -> None:
    state, api = cluster
    state.begin(submitter("s1", 1), *FIRST[:2])
    following, printed, errors = following_of(state, api, tmp_path, attempts={})
    until(lambda: FIRST[1] in printed)
    state.is_away = True
    until(lambda: any("the cluster is away" in line for line in said))
    state.is_away = False
    state.add("s1", *FIRST[2:])
    until(lambda: FIRST[-1] in printed)
    state.pods["s1"] = submitter("s1", 1, phase="Failed")
    state.begin(submitter("s2", 2), *SECOND)
    until(lambda: SECOND[-1] in printed)
    end(state, following)
    assert (printed, errors) == ([*FIRST, "===== pod s2 =====", *SECOND], [])
    assert [line for line in said if "the cluster is" not in line] == []


def test_the_tail_is_that_of_every_pod_of_the_first_look_also_where_an_older_one_is_waited_for(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, tmp_path: Path
) -> None:
    state, api = cluster
    state.silent.add("s1")
    for number, lines in ((1, FIRST), (2, SECOND)):
        state.begin(submitter(f"s{number}", number, phase="Failed"), *lines)
    following, printed, errors = following_of(state, api, tmp_path, attempts={1: FIRST, 2: SECOND}, tail=1)
    until(lambda: state.num_refused > 2)
    state.silent.clear()
    until(lambda: SECOND[-1] in printed)
    end(state, following)
    assert (printed, errors) == ([FIRST[-1], "===== pod s2 =====", SECOND[-1]], [])


def test_the_tail_is_that_of_the_pods_at_the_beginning_and_a_later_one_is_read_whole(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, tmp_path: Path
) -> None:
    state, api = cluster
    state.begin(submitter("s1", 1, phase="Failed"), *FIRST)
    following, printed, errors = following_of(state, api, tmp_path, attempts={1: FIRST}, tail=2)
    until(lambda: FIRST[-1] in printed)
    state.begin(submitter("s2", 2), *SECOND)
    until(lambda: SECOND[-1] in printed)
    end(state, following)
    assert (printed, errors) == ([*FIRST[2:], "===== pod s2 =====", *SECOND], [])


def test_a_tail_of_a_submitters_own_lines_does_not_bring_the_whole_log_of_its_attempt(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, tmp_path: Path
) -> None:
    state, api = cluster
    state.begin(submitter("s1", 1, phase="Failed"), *FIRST, own := "opd.pods.submit: job r: FAILED")
    state.begin(submitter("s2", 2))
    following, printed, errors = following_of(state, api, tmp_path, attempts={1: FIRST, 2: SECOND}, tail=1)
    until(lambda: own in printed)
    state.add("s2", *SECOND)
    until(lambda: SECOND[-1] in printed)
    end(state, following)
    assert ([line for line in printed if not line.startswith("=")], errors) == ([own, *SECOND], [])


def test_the_tail_is_that_of_the_store_where_no_pod_is_left(cluster: tuple[Cluster, KubeApi], tmp_path: Path) -> None:
    state, api = cluster
    state.job = None
    following, printed, errors = following_of(state, api, tmp_path, attempts={1: FIRST, 2: SECOND}, tail=2)
    wait_for(following)
    assert (printed, errors) == (SECOND[2:], [])


def test_a_tail_is_none_of_what_a_silent_container_prints_later(
    cluster: tuple[Cluster, KubeApi], submitter: Callable
) -> None:
    state, api = cluster
    state.begin(submitter("s1", 1))
    log = PodLog(api, find_log_pods(api, "r", "K8sJobMode")[0], tail=2)
    assert list(log.lines(follow=True)) == []
    state.add("s1", *FIRST)
    assert list(log.lines(follow=False)) == FIRST


def test_lines_just_before_the_tail_do_not_come_when_its_stream_is_opened_again(
    cluster: tuple[Cluster, KubeApi], submitter: Callable
) -> None:
    state, api = cluster
    state.begin(submitter("s1", 1), *FIRST)
    log = PodLog(api, find_log_pods(api, "r", "K8sJobMode")[0], tail=2)
    assert list(log.lines(follow=True)) == FIRST[2:]
    state.add("s1", *SECOND)
    assert list(log.lines(follow=False)) == SECOND


@pytest.mark.parametrize("num_bytes", [5, 31], ids=["in its stamp", "in its text"])
def test_a_tail_whose_stream_breaks_within_its_first_line_stays_a_tail(
    cluster: tuple[Cluster, KubeApi], submitter: Callable, monkeypatch: pytest.MonkeyPatch, num_bytes: int
) -> None:
    state, api = cluster
    state.begin(submitter("s1", 1), *FIRST)
    log = PodLog(api, find_log_pods(api, "r", "K8sJobMode")[0], tail=2)

    def broken(*_: object, **__: object) -> Iterator[bytes]:
        yield state.logs["s1"][2].encode()[:num_bytes]
        raise StreamBroken("the stream broke off")

    with monkeypatch.context() as patched:
        patched.setattr(api, "stream", broken)
        with pytest.raises(StreamBroken):
            list(log.lines(follow=True))
    assert list(log.lines(follow=False)) == FIRST[2:]


def test_a_line_is_out_at_once_also_where_the_output_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    with open(path, "w") as file:
        monkeypatch.setattr("sys.stdout", file)
        PodFollower.out("a step")
        assert path.read_text() == "a step\n"


def test_one_pod_is_followed_to_its_own_end_by_its_name_or_its_role(
    cluster: tuple[Cluster, KubeApi], pod: Callable
) -> None:
    state, api = cluster
    for name in ("w1", "w2"):
        tree = pod("worker", name=name, containerStatuses=[{"name": "ray", "state": {"running": {}}}])
        state.pods[name], state.logs[name] = tree, []
    state.add("w1", *(lines := [f"line {number}" for number in range(6)]))
    with pytest.raises(ToolError, match="2 worker pods") as refused:
        find_pod(api, "r", "worker", None)
    assert "w1, w2" in refused.value.fix
    with pytest.raises(ToolError, match="no container 'log'"):
        find_pod(api, "r", "w1", "log")
    state.pods["w1"]["status"]["phase"] = "Succeeded"
    printed: list[str] = []
    follower = PodFollower(
        api, "r", lambda: find_pod(api, "r", "w1", None), is_one_pod=True, poll_s=0.01, out=printed.append
    )
    follower.follow()
    assert printed == lines, "the run goes on, the pod does not"
    del state.pods["w2"]
    assert [found.name for found in find_pod(api, "r", "worker", "ray")] == ["w1"]


def test_a_store_in_which_nothing_lay_yet_when_following_began_has_the_lines_of_pods_that_went(
    cluster: tuple[Cluster, KubeApi], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    state, api = cluster
    succeed(state)
    monkeypatch.setattr(locate, "connect", lambda **_: api)
    monkeypatch.setattr(locate, "is_configured", lambda: True)
    keep(tmp_path, 1, FIRST)  # there is no run.json: for the tool the run has no place yet
    logs("r", store=str(tmp_path), follow=True)
    assert capsys.readouterr().out.splitlines() == FIRST


def no_such_pod(api: KubeApi, pods: list[dict[str, Any]]) -> ToolError:
    run = ClusterRun(job=None, pods=pod_lines(pods, []))
    found = Found(run_id="r", api=api, in_cluster=run, place=None)
    with pytest.raises(ToolError, match="run r has no pod 'wroker' now") as refused:
        of_pod(found, "wroker", None, follow=False, tail=None)
    return refused.value


def test_a_pod_that_is_not_there_is_answered_with_those_that_are_and_their_roles(
    cluster: tuple[Cluster, KubeApi], pod: Callable
) -> None:
    error = no_such_pod(cluster[1], [pod("head", name="h"), pod("worker", name="w1")])
    assert "h (head), w1 (worker)" in str(error)
    assert "name one of them with --pod" in error.fix


def test_where_no_pod_is_there_the_run_s_log_is_proposed(cluster: tuple[Cluster, KubeApi]) -> None:
    error = no_such_pod(cluster[1], [])
    assert "nor any other" in str(error)
    assert "leave out --pod" in error.fix


@pytest.mark.parametrize(
    ("notes", "why", "fix"),
    [
        (["the cluster was left out: timeout"], "and the cluster was left out: timeout", "ask again"),
        ([], "and none was asked", "name the cluster"),
    ],
    ids=["away", "none"],
)
def test_a_pod_without_a_cluster_is_an_error_that_says_whether_one_was_asked(
    notes: list[str], why: str, fix: str
) -> None:
    found = Found(run_id="r", api=None, in_cluster=None, place=None, notes=notes)
    with pytest.raises(ToolError) as refused:
        of_pod(found, "s1", None, follow=False, tail=None)
    assert str(refused.value).startswith(f"run r: --pod is read from the cluster, {why}")
    assert refused.value.fix.startswith(fix)


def test_a_pod_that_was_evicted_before_it_started_does_not_keep_who_follows_it(
    cluster: tuple[Cluster, KubeApi], pod: Callable
) -> None:
    state, api = cluster
    state.pods["w1"] = pod("worker", name="w1", phase="Failed", reason="Evicted")
    follower = PodFollower(api, "r", lambda: find_pod(api, "r", "w1", None), is_one_pod=True, poll_s=0.01)
    following = threading.Thread(target=follower.follow, daemon=True)
    following.start()
    wait_for(following)
    assert follower.num_lines == 0
