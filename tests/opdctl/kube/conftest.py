"""Objects as KubeRay 1.6.1 and Kubernetes write them; a test changes what it is about. And an API server within the process."""

from collections.abc import Callable
from typing import Any

import pytest

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

    def make(name: str = "r", *, queue: str = "", **status: Any) -> Tree:
        pod = {"template": {"spec": {"terminationGracePeriodSeconds": 360}}}
        labels = {"opd/run-id": name} | ({"kueue.x-k8s.io/queue-name": queue} if queue else {})
        cluster = {"headGroupSpec": pod, "workerGroupSpecs": [{**pod, "replicas": 2}]}
        return {
            "metadata": {"name": name, "creationTimestamp": CREATED, "labels": labels},
            "spec": {"submissionMode": "K8sJobMode", "backoffLimit": 3, "rayClusterSpec": cluster},
            "status": status,
        }

    return make


@pytest.fixture
def pod() -> Callable[..., Tree]:
    """A pod of the run; keywords are fields of its status."""

    def make(role: str = "worker", *, name: str = "", node: str = "n1", gpus: int = 0, **status: Any) -> Tree:
        labels = {"opd/run-id": "r", "app.kubernetes.io/component": role}
        limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
        return {
            "metadata": {"name": name or f"r-{role}", "creationTimestamp": CREATED, "labels": labels},
            "spec": {"containers": [{"name": "ray", "resources": {"limits": limits}}], "nodeName": node},
            "status": {"phase": "Running", **status},
        }

    return make


@pytest.fixture
def event() -> Callable[..., Tree]:
    """A core event of type Warning."""

    def make(kind: str, name: str, reason: str, message: str, *, at: str = "2026-11-21T10:05:00Z") -> Tree:
        about = {"kind": kind, "name": name}
        return {"involvedObject": about, "type": "Warning", "reason": reason, "message": message, "lastTimestamp": at}

    return make
