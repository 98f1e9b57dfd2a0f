"""Doctor's checks of a cluster, over objects as its API server gives them."""

from __future__ import annotations

from typing import Any

import pytest

from opd.spec.cluster import RunCluster, parse_cluster
from opdctl.cluster.checks import (
    check_gpus,
    check_kuberay,
    check_namespace,
    check_objects,
    check_queue,
    check_quota,
    check_rights,
    check_secret_key,
)
from opdctl.cluster.errors import ClusterError


def cluster(**keys: Any) -> RunCluster:
    found = parse_cluster(keys, "opd")
    assert isinstance(found, RunCluster)
    return found


def crd(*fields: str) -> dict[str, Any]:
    spec = {"properties": {"spec": {"properties": {name: {} for name in fields}}}}
    return {"spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": spec}}]}}


def node(gpus: int, product: str = "H200") -> dict[str, Any]:
    return {
        "metadata": {"labels": {"nvidia.com/gpu.product": product}},
        "status": {"allocatable": {"nvidia.com/gpu": str(gpus)}},
    }


def test_kuberay_is_told_by_the_newest_field_of_its_crd() -> None:
    assert check_kuberay(crd("preRunningDeadlineSeconds")).is_ok
    assert "older than 1.6" in check_kuberay(crd("entrypoint")).message
    assert "not installed" in check_kuberay(None).message


def test_missing_rights_are_named_with_who_gives_them() -> None:
    assert check_rights([], "opd").is_ok
    check = check_rights(["create rayjobs"], "opd")
    assert "create rayjobs" in check.message
    assert "opd-users" in check.fix


def test_a_namespace_without_the_suspend_policy_is_said() -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted", "opd/runs": "true"}
    assert check_namespace({"metadata": {"labels": labels}}, "opd").message == "opd, Pod Security restricted"
    assert "suspend policy does not select it" in check_namespace({"metadata": {}}, "opd").message
    assert not check_namespace(None, "opd").is_ok


def test_claims_must_be_there_and_bound() -> None:
    found = {"a": {"status": {"phase": "Bound"}}, "b": {"status": {"phase": "Pending"}}, "c": None}
    checks = check_objects("claim", dict.fromkeys(found, "cluster.mounts.0.claim"), found, "make it")
    assert [check.is_ok for check in checks] == [True, False, False]
    assert "is Pending" in checks[1].message
    assert checks[2].fix == "make it"


def test_a_secret_lacks_a_key_and_its_value_is_never_shown() -> None:
    secret = {"data": {"token": "c2VjcmV0LXZhbHVl"}}
    assert check_secret_key("hub", "token", "cluster.secrets.huggingFace", secret).is_ok
    check = check_secret_key("hub", "other", "cluster.secrets.huggingFace", secret)
    assert not check.is_ok
    assert "c2Vj" not in check.message + check.fix


@pytest.mark.parametrize(("nodes", "is_ok"), [([8, 8], True), ([16], True), ([8, 4, 4], False), ([], False)])
def test_each_worker_needs_its_gpus_on_one_node(nodes: list[int], is_ok: bool) -> None:
    check = check_gpus([node(gpus) for gpus in nodes], cluster(), num_workers=2, gpus_per_worker=8)
    assert check.is_ok == is_ok


def test_only_nodes_of_the_gpu_type_count() -> None:
    wanted = cluster(gpu={"type": "H200"})
    check = check_gpus([node(8, "A100"), node(4)], wanted, num_workers=1, gpus_per_worker=8)
    assert "of type H200 do not fit" in check.message


def test_a_gpu_type_that_no_node_has_is_told_with_those_that_there_are() -> None:
    wanted = cluster(gpu={"type": "NVIDIA-H200"})
    check = check_gpus([node(8, "A100"), node(8, "L40S")], wanted, num_workers=1, gpus_per_worker=8)
    assert check.message == "no node has the label nvidia.com/gpu.product=NVIDIA-H200: there are A100, L40S"
    assert "cluster.gpu.type" in check.fix
    check = check_gpus([{"metadata": {}, "status": {}}], wanted, num_workers=1, gpus_per_worker=8)
    assert "no node has that label at all" in check.message


def test_a_quota_that_has_too_few_gpus_left_is_told() -> None:
    status = {"hard": {"requests.nvidia.com/gpu": "32"}, "used": {"requests.nvidia.com/gpu": "24"}}
    quotas = [{"metadata": {"name": "opd"}, "status": status}, {"metadata": {"name": "cpu"}, "status": {"hard": {}}}]
    [few] = check_quota(quotas, resource="nvidia.com/gpu", num_gpus=16)
    assert few.message == "opd: 8 of 32 nvidia.com/gpu left, the run needs 16"
    assert not few.is_ok
    [enough] = check_quota(quotas, resource="nvidia.com/gpu", num_gpus=8)
    assert enough.is_ok


def test_a_queue_is_looked_for_where_the_spec_names_one() -> None:
    assert check_queue(cluster(), None) is None
    queued = cluster(queue={"manager": "kueue", "name": "team"})
    found = check_queue(queued, {"metadata": {"name": "team"}})
    assert found is not None
    assert found.is_ok
    for answer in (None, ClusterError("cannot read localqueues", status=403)):
        check = check_queue(queued, answer)
        assert check is not None
        assert "no LocalQueue team" in check.message
