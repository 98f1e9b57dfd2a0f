"""Doctor's checks of a cluster, over objects as its API server gives them."""

from __future__ import annotations

from typing import Any

import pytest

from opd.redaction import redact
from opdctl.doctor.checks import (
    check_claim,
    check_class,
    check_kuberay,
    check_namespace,
    check_operator,
    check_reference,
    check_rights,
)
from opdctl.doctor.rendered import Reference


def crd(*fields: str) -> dict[str, Any]:
    spec = {"properties": {"spec": {"properties": {name: {} for name in fields}}}}
    return {"spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": spec}}]}}


def test_kuberay_is_told_by_the_newest_field_of_its_crd() -> None:
    assert check_kuberay(crd("preRunningDeadlineSeconds")).state == "ok"
    assert "older than 1.6" in check_kuberay(crd("entrypoint")).message
    assert "not installed" in check_kuberay(None).message


def test_missing_rights_are_named_with_who_gives_them() -> None:
    assert check_rights([], "opd").state == "ok"
    check = check_rights(["create rayjobs"], "opd")
    assert "create rayjobs" in check.message
    assert "opd-users" in check.fix


def test_a_namespace_without_the_suspend_policy_is_said() -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted", "opd/runs": "true"}
    assert check_namespace({"metadata": {"labels": labels}}, "opd").message == "opd, Pod Security restricted"
    assert "suspend policy does not select it" in check_namespace({"metadata": {}}, "opd").message
    assert check_namespace(None, "opd").state == "MISSING"


def operator(
    image: str = "quay.io/kuberay/operator:v1.6.1",
    namespace: str = "kuberay-system",
    *,
    args: tuple[str, ...] = (),
    **status: int,
) -> dict[str, Any]:
    container = {"name": "kuberay-operator", "image": image, "args": list(args)}
    spec = {"template": {"spec": {"containers": [container]}}}
    return {"metadata": {"name": "kuberay-operator", "namespace": namespace}, "spec": spec, "status": status}


@pytest.mark.parametrize(
    ("deployment", "state", "words"),
    [
        (operator(), "ok", "all namespaces"),
        (operator("mirror.example:5000/operator:v1.6.0-rc.1"), "ok", ""),
        (operator("mirror.example:5000/operator@sha256:00"), "ok", ""),
        (operator("quay.io/kuberay/operator:v1.5.2"), "MISSING", "1.5.2, older than 1.6"),
        (operator(args=("--watch-namespace=a,opd",)), "ok", "this namespace"),
        (operator(args=("--watch-namespace", "a,b")), "MISSING", "watches only a,b"),
        (operator(unavailableReplicas=1), "MISSING", "no running pod"),
        (operator(namespace="ray"), "MISSING", "cluster.networkPolicy.operatorNamespace: ray"),
    ],
)
def test_an_operator_is_new_enough_runs_watches_the_namespace_and_may_reach_the_run(
    deployment: dict, state: str, words: str
) -> None:
    check = check_operator([deployment], namespace="opd", expected_in="kuberay-system")
    assert check.state == state
    assert words in check.message + check.fix


def secret(**data: str) -> dict[str, Any]:
    return {"metadata": {"name": "s"}, "data": data}


def test_a_secret_lacks_a_key_and_its_value_is_never_shown() -> None:
    tree = secret(token="c2VjcmV0LXZhbHVl")
    item = Reference(kind="Secret", name="s", keys=frozenset(["token"]))
    assert check_reference(item, tree, namespace="opd", path="p").state == "ok"
    item = Reference(kind="Secret", name="s", keys=frozenset(["other"]))
    check = check_reference(item, tree, namespace="opd", path="p")
    assert check.message == "secret s (p) has no key other; its keys are token"
    assert "c2Vj" not in check.message + check.fix


def test_a_missing_object_is_told_with_the_very_command_that_makes_it() -> None:
    check = check_reference(Reference(kind="PullSecret", name="registry"), None, namespace="opd", path="p")
    assert check.fix.startswith("kubectl create secret docker-registry registry -n opd ")
    assert redact(check.fix, environment={}) == check.fix
    for keys, words in ((), "--from-env-file=store.env"), (("token",), "--from-file=token=..."):
        item = Reference(kind="Secret", name="hub", keys=frozenset(keys))
        check = check_reference(item, None, namespace="opd", path="p")
        assert check.fix.startswith(f"kubectl create secret generic hub -n opd {words}")
        assert redact(check.fix, environment={}) == check.fix
    check = check_reference(Reference(kind="Claim", name="dta"), None, namespace="opd", path="p", others=["data"])
    assert "there are data" in check.message


def test_a_pull_secret_is_of_the_right_type() -> None:
    check = check_reference(Reference(kind="PullSecret", name="s"), secret(), namespace="opd", path="p")
    assert "no image can be pulled with it" in check.message


def claim(*modes: str, phase: str = "Bound") -> dict[str, Any]:
    return {"spec": {"accessModes": list(modes), "storageClassName": "c"}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("modes", "num_pods", "is_read_only", "state"),
    [
        (("ReadWriteMany",), 3, False, "ok"),
        (("ReadOnlyMany",), 3, True, "ok"),
        (("ReadOnlyMany",), 3, False, "warning"),
        (("ReadWriteOnce",), 3, False, "warning"),
        (("ReadWriteOnce",), 1, False, "ok"),
        (("ReadWriteOncePod",), 3, False, "MISSING"),
    ],
)
def test_a_claim_can_be_mounted_by_all_pods_that_name_it(
    modes: tuple, num_pods: int, is_read_only: bool, state: str
) -> None:
    item = Reference(kind="Claim", name="c", is_read_only=is_read_only)
    check = check_claim(item, claim(*modes), path="p", num_pods=num_pods)
    assert check.state == state
    assert check.message.startswith("claim c (p)")


def storage_class(name: str, provisioner: str, *, is_default: bool = False) -> dict[str, Any]:
    notes = {"storageclass.kubernetes.io/is-default-class": "true"} if is_default else {}
    return {"metadata": {"name": name, "annotations": notes}, "provisioner": provisioner}


@pytest.mark.parametrize(
    ("wanted", "is_default", "state", "words"),
    [
        ("nfs", False, "ok", "nfs"),
        ("gone", False, "MISSING", "one of: disk, nfs"),
        ("disk", False, "MISSING", "a shared file system (nfs)"),
        (None, True, "MISSING", "StorageClass disk (ebs.csi.aws.com) makes volumes for one node"),
        (None, False, "MISSING", "no StorageClass is the default"),
    ],
)
def test_the_class_of_a_run_s_own_volume_is_there_and_can_be_shared(
    wanted: str | None, is_default: bool, state: str, words: str
) -> None:
    classes = [storage_class("disk", "ebs.csi.aws.com", is_default=is_default), storage_class("nfs", "nfs.csi.k8s.io")]
    spec: dict[str, Any] = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Ti"}}}
    spec |= {"storageClassName": wanted} if wanted else {}
    check = check_class({"spec": spec}, classes, path="cluster.checkpoints.storageClass")
    assert check.state == state
    assert words in check.message + check.fix
