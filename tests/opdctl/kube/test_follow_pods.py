"""A run's log from its pods: each line once, in order, over broken streams to the run's end."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest
from tests.opdctl.kube.conftest import FakeApi, Tree

from opdctl.kube.client import ClusterError
from opdctl.logs.pods import PodFollower

DONE = {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"}


class Cluster(FakeApi):
    """A run whose log grows by a script: its next action comes once everything so far is printed.

    A followed stream ends after four new lines, every other one in the middle of a line.
    """

    def __init__(self, job: Tree, *script: Callable[[], object]) -> None:
        super().__init__(self.look)
        self.job, self.script, self.is_away = job, [*script], False
        self.pods: dict[str, Tree] = {}
        self.logs: dict[str, list[str]] = {}
        self.shown: dict[str, int] = {}
        self.silent: set[str] = set()
        self.num_streams, self._clock_s = 0, datetime(2026, 11, 21, 10, tzinfo=UTC).timestamp()

    def add(self, name: str, *texts: str) -> None:
        """Add lines a fifth of a second apart, some with one stamp, so that streams overlap."""
        for number, text in enumerate(texts):
            self._clock_s += 0.2 if number % 3 else 0.0
            stamp = datetime.fromtimestamp(self._clock_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
            self.logs.setdefault(name, []).append(f"{stamp} {text}")

    def look(self, method: str, path: str, query: dict) -> tuple[int, Tree]:
        if "/rayjobs/" in path and all(self.shown.get(name) == len(self.logs[name]) for name in self.pods):
            self.script.pop(0)()
        if self.is_away:
            raise ClusterError("no answer")
        return (200, self.job) if "/rayjobs/" in path else (200, {"items": [*self.pods.values()]})

    def stream(self, path: str, *, read_timeout_s: float, **query: str | int) -> Iterator[bytes]:
        name = path.split("/")[-2]
        if name in self.silent:
            raise ClusterError("connection refused", status=500)
        since = str(query.get("sinceTime", "")).replace("Z", ".000000000Z")
        self.shown[name] = (
            min(self.shown.get(name, 0) + 4, len(self.logs[name])) if "follow" in query else len(self.logs[name])
        )
        lines = [line for line in self.logs[name][: self.shown[name]] if line.partition(" ")[0] >= since]
        body = "".join(f"{line}\n" for line in lines[-int(query.get("tailLines", 0)) :]).encode()
        self.num_streams += 1
        if "follow" in query and self.num_streams % 2 == 0:
            self.shown[name] -= 1
            yield body[:-3]
            raise ClusterError("the stream broke off")
        yield body


@pytest.fixture
def submitter(pod: Callable) -> Callable[..., Tree]:
    def make(name: str, minute: int, *, phase: str = "Running") -> Tree:
        status = {"name": "submitter", "state": {"running": {}}}
        tree = pod("submitter", name=name, phase=phase, containerStatuses=[status])
        tree["metadata"]["creationTimestamp"] = f"2026-11-21T10:{minute:02d}:00Z"
        return tree

    return make


@pytest.fixture
def follow(monkeypatch: pytest.MonkeyPatch) -> Callable[[Cluster], tuple[list[str], list[str]]]:
    """Follow run r to its end; return what is printed and what is noted."""
    said: list[str] = []
    for module in ("opdctl.logs.pods", "opdctl.kube.client"):
        monkeypatch.setattr(f"{module}.note", said.append)

    def run(api: Cluster) -> tuple[list[str], list[str]]:
        printed: list[str] = []
        PodFollower(api, "r", poll_s=0.0, out=printed.append).follow()
        assert api.script == []
        return printed, said

    return run


def test_every_line_comes_once_over_broken_streams_a_lost_pod_and_an_api_server_away(
    rayjob: Callable, submitter: Callable, follow: Callable
) -> None:
    first = [f"step {number}/40" for number in range(20)]
    second = [f"step {number}/40 again" for number in range(15, 40)]

    def begin(name: str, minute: int, *texts: str) -> None:
        api.add(name, "hello", *texts)
        api.pods[name] = submitter(name, minute)

    def end() -> None:
        api.pods["s2"] = submitter("s2", 2, phase="Succeeded")
        api.job["status"] = DONE

    api = Cluster(
        rayjob(jobDeploymentStatus="Running"),
        lambda: begin("s1", 1, *first),
        lambda: api.pods.pop("s1"),
        lambda: begin("s2", 2, *second[:10]),
        lambda: setattr(api, "is_away", True),
        lambda: (setattr(api, "is_away", False), api.add("s2", *second[10:])),
        end,
    )
    printed, said = follow(api)
    assert printed == ["hello", *first, "===== pod s2 =====", "hello", *second]
    assert api.num_streams > 10, "streams were broken"
    assert said == ["the cluster is unreachable, waiting for it: no answer"]


def test_a_pod_that_stays_silent_at_the_end_is_given_up_and_the_store_is_named(
    rayjob: Callable, submitter: Callable, follow: Callable
) -> None:
    def begin() -> None:
        api.add("s1", "a", "b")
        api.pods["s1"] = submitter("s1", 1)

    def end() -> None:
        api.silent.add("s1")
        api.job["status"] = DONE

    api = Cluster(rayjob(jobDeploymentStatus="Running"), begin, end)
    printed, said = follow(api)
    assert printed == ["a", "b"]
    assert said[-1] == "pod s1 cannot be read: `opdctl logs r` reads the rest from the store"


def test_a_tail_leaves_out_no_later_line_and_a_further_stream_brings_no_earlier_one(
    rayjob: Callable, submitter: Callable
) -> None:
    api = Cluster(rayjob())
    api.pods["s1"], api.logs["s1"] = submitter("s1", 1), []
    printed: list[str] = []
    follower = PodFollower(api, "r", tail=2, out=printed.append)
    follower._read("s1", follow=True)
    follower.tail = None
    api.add("s1", "a", "b", "c")
    follower._read("s1", follow=False)
    assert printed == ["a", "b", "c"]
    printed.clear()
    follower = PodFollower(api, "r", tail=2, out=printed.append)
    follower._read("s1", follow=False)
    api.add("s1", "d")
    follower._read("s1", follow=False)
    assert printed == ["b", "c", "d"]


def test_the_pods_of_the_log_come_oldest_first(submitter: Callable) -> None:
    pods = [submitter("s1", 30), submitter("s0", 0, phase="Failed")]

    def answer(method: str, path: str, query: dict) -> tuple[int, Tree]:
        assert query["labelSelector"] == "opd/run-id=r,app.kubernetes.io/component=submitter"
        return 200, {"items": pods}

    assert [*PodFollower(FakeApi(answer), "r").pods().items()] == [("s0", True), ("s1", False)]
