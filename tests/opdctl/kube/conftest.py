"""Objects as KubeRay 1.6.1 and Kubernetes write them, built from their API types; a test changes what it is about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Tree = dict[str, Any]
CREATED = "2026-11-21T10:00:00Z"


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
