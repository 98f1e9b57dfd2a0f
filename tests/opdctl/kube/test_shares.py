"""A run against its namespace's quotas and its queue, all pods together."""

from __future__ import annotations

from typing import Any

import pytest

from opdctl.doctor.check_shares import check_kueue, check_quota
from opdctl.doctor.placement import Group


def group(role: str, count: int, **resources: str) -> Group:
    spec = {"containers": [{"resources": {"requests": resources, "limits": {"memory": resources["memory"]}}}]}
    return Group(role=role, count=count, pod={"metadata": {"namespace": "opd", "labels": {}}, "spec": spec})


GROUPS = [
    group("head", 1, cpu="2", memory="16Gi"),
    group("worker", 2, cpu="27", memory="200Gi", **{"nvidia.com/gpu": "8"}),
]
CLAIM = {
    "kind": "PersistentVolumeClaim",
    "spec": {"resources": {"requests": {"storage": "500Gi"}}, "storageClassName": "nfs"},
}
OBJECTS = [{"kind": "RayJob"}, {"kind": "ConfigMap"}, CLAIM]


def quota(used: str = "0", **hard: str) -> dict[str, Any]:
    return {"metadata": {"name": "q"}, "spec": {}, "status": {"hard": hard, "used": dict.fromkeys(hard, used)}}


@pytest.mark.parametrize(
    ("key", "enough"),
    [
        ("requests.cpu", "56"), ("cpu", "56"), ("requests.memory", "416Gi"), ("limits.memory", "416Gi"), ("requests.nvidia.com/gpu", "16"),
        ("pods", "3"), ("requests.storage", "500Gi"), ("persistentvolumeclaims", "1"), ("count/rayjobs.ray.io", "1"),
        ("nfs.storageclass.storage.k8s.io/requests.storage", "500Gi"), ("count/rayclusters.ray.io", "1"), ("secrets", "2"),
    ],
)  # fmt: skip
def test_a_quota_counts_all_pods_and_objects_of_a_run(key: str, enough: str) -> None:
    [check] = check_quota(quota(**{key: enough}), GROUPS, OBJECTS)
    assert check.state == "ok"
    [check] = check_quota(quota("1", **{key: enough}), GROUPS, OBJECTS)
    assert check.state == "MISSING"
    assert key in check.message


@pytest.mark.parametrize(
    ("scope", "counts"),
    [
        ({"scopes": ["NotTerminating"]}, True), ({"scopes": ["Terminating"]}, False), ({"scopes": ["BestEffort"]}, False),
        ({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]}}, False),
        ({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "DoesNotExist"}]}}, True),
    ],
)  # fmt: skip
def test_a_quota_with_scopes_counts_only_pods_in_all_of_them(scope: dict, counts: bool) -> None:
    [check] = check_quota({**quota(pods="0"), "spec": scope}, GROUPS, OBJECTS)
    assert (check.state == "MISSING") == counts


def queue(**spec: Any) -> dict[str, Any]:
    flavor = {
        "name": "f",
        "resources": [
            {"name": "cpu", "nominalQuota": 40},
            {"name": "memory", "nominalQuota": "1Ti"},
            {"name": "nvidia.com/gpu", "nominalQuota": 8},
        ],
    }
    twice = [{"coveredResources": ["cpu", "memory", "nvidia.com/gpu"], "flavors": [flavor, {**flavor, "name": "g"}]}]
    return {"metadata": {"name": "cq"}, "spec": {"namespaceSelector": {}, "resourceGroups": twice, **spec}}


LOCAL = {"metadata": {"name": "lq"}}
SMALL = [{"coveredResources": ["cpu", "memory", "nvidia.com/gpu"], "flavors": []}]


@pytest.mark.parametrize(
    ("cluster_queue", "words"),
    [
        (queue(), ""),
        (queue(namespaceSelector={"matchLabels": {"team": "b"}}), "does not select this namespace"),
        (queue(namespaceSelector=None), "does not select this namespace"),
        (queue(resourceGroups=[{"coveredResources": ["cpu", "memory"], "flavors": []}]), "does not cover nvidia.com/gpu"),
        (queue(resourceGroups=SMALL), "smaller than the run: cpu: the run wants 56 of 0"),
        (queue(resourceGroups=SMALL, cohort="all"), ""),
        ({**queue(), "status": {"conditions": [{"type": "Active", "status": "False", "message": "flavor f is missing"}]}}, "flavor f is missing"),
    ],
)  # fmt: skip
def test_a_queue_that_can_never_admit_the_run_is_told(cluster_queue: dict, words: str) -> None:
    check = check_kueue(GROUPS, LOCAL, cluster_queue, {"metadata": {"labels": {"team": "a"}}})
    assert (check.state == "ok") == (not words)
    assert words in check.message
