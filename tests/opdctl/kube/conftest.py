"""Objects as KubeRay 1.6.1 and Kubernetes write them, built from their API types; a test changes what it is about. And a server that shows a run's pods."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from typing import Any

import pytest
from kubernetes import client
from tests.opdctl.kube.followed import Cluster, Handler

from opdctl.kube.client import ClusterError, KubeApi

Tree = dict[str, Any]
CREATED = "2026-11-21T10:00:00Z"


class FakeApi(KubeApi):
    """The API of namespace `opd` without HTTP: `answer` gives status and body, None means not found."""

    def __init__(self, answer: Callable[[str, str, dict], tuple[int, Tree] | None]) -> None:
        super().__init__(None, namespace="opd", context=None)
        self.answer = answer
        self.asked: list[tuple[str, str, dict]] = []

    def _json(self, method: str, path: str, query: dict, body: Tree | None = None) -> Tree:
        self.asked.append((method, path, query))
        status, tree = self.answer(method, path, query) or (404, {"message": "not found"})
        if status >= 300:
            raise ClusterError(tree["message"], status=status)
        return tree


@pytest.fixture
def rayjob() -> Callable[..., Tree]:
    """A RayJob with two workers; keywords are fields of its status."""

    def make(
        *, suspendable: bool = False, suspend: bool = False, deleting: bool = False, queue: str = "", **status: Any
    ) -> Tree:
        rules = [{"policy": "DeleteSelf", "condition": {"jobStatus": "SUCCEEDED", "ttlSeconds": 9}}]
        life: Tree = (
            {"shutdownAfterJobFinishes": True} if suspendable else {"deletionStrategy": {"deletionRules": rules}}
        )
        pod = {"template": {"spec": {"terminationGracePeriodSeconds": 360}}}
        metadata: Tree = {"name": "r", "creationTimestamp": CREATED, "labels": {"opd/run-id": "r"}}
        metadata |= {"deletionTimestamp": "2026-11-21T11:00:00Z"} if deleting else {}
        metadata["labels"] |= {"kueue.x-k8s.io/queue-name": queue} if queue else {}
        return {
            "metadata": metadata,
            "spec": {
                **life,
                "suspend": suspend,
                "submissionMode": "K8sJobMode",
                "backoffLimit": 3,
                "rayClusterSpec": {"headGroupSpec": pod, "workerGroupSpecs": [{**pod, "replicas": 2}]},
            },
            "status": status,
        }

    return make


@pytest.fixture
def pod() -> Callable[..., Tree]:
    """A pod of the run; keywords are fields of its status."""

    def make(
        role: str = "worker", *, name: str = "", node: str = "n1", gpus: int = 0, deleting: bool = False, **status: Any
    ) -> Tree:
        metadata: Tree = {
            "name": name or f"r-{role}",
            "creationTimestamp": CREATED,
            "labels": {"opd/run-id": "r", "app.kubernetes.io/component": role},
        }
        metadata |= {"deletionTimestamp": "2026-11-21T11:00:00Z"} if deleting else {}
        limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
        spec: Tree = {"containers": [{"name": "ray", "resources": {"limits": limits}}]} | (
            {"nodeName": node} if node else {}
        )
        return {"metadata": metadata, "spec": spec, "status": {"phase": "Running", **status}}

    return make


@pytest.fixture
def event() -> Callable[..., Tree]:
    """A core event of type Warning."""

    def make(kind: str, name: str, reason: str, message: str, *, at: str = "2026-11-21T10:05:00Z") -> Tree:
        return {
            "metadata": {"creationTimestamp": CREATED},
            "involvedObject": {"kind": kind, "name": name},
            "type": "Warning",
            "reason": reason,
            "message": message,
            "lastTimestamp": at,
        }

    return make


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


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What following notes on stderr. `capsys` may not be read meanwhile: it loses what another thread prints at that moment."""
    notes: list[str] = []
    monkeypatch.setattr("opdctl.logs.pods.note", notes.append)
    return notes
