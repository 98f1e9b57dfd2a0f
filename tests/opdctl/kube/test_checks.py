"""Doctor's checks of a cluster, over objects as its API server gives them."""

from __future__ import annotations

from typing import Any

import pytest

from opd.redaction import redact
from opdctl.doctor import check_class, check_kuberay, check_namespace, check_reference, check_rights
from opdctl.kube.objects import CLAIMS, PULL_KEY, SECRETS


def crd(*fields: str) -> dict[str, Any]:
    spec = {"properties": {"spec": {"properties": {name: {} for name in fields}}}}
    return {"spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": spec}}]}}


def test_the_version_of_kuberay_follows_from_the_newest_field_of_its_crd() -> None:
    assert check_kuberay(crd("preRunningDeadlineSeconds")).state == "ok"
    assert "older than 1.6" in check_kuberay(crd("entrypoint")).message
    assert "not installed" in check_kuberay(None).message


def test_missing_rights_are_named_with_who_gives_them() -> None:
    assert check_rights([], "opd").state == "ok"
    check = check_rights(["create rayjobs"], "opd")
    assert "create rayjobs" in check.message
    assert "opd-users" in check.fix


def test_a_namespace_that_is_not_there_is_missing() -> None:
    assert check_namespace({"metadata": {}}, "opd").state == "ok"
    assert check_namespace(None, "opd").state == "MISSING"


def secret(**data: str) -> dict[str, Any]:
    return {"metadata": {"name": "s"}, "data": data}


@pytest.mark.parametrize(
    ("keys", "is_s3", "words"),
    [
        ({"token"}, False, ""),
        ({"other"}, False, "secret s (p) has no key other; its keys are token"),
        ({PULL_KEY}, False, f"secret s (p) has no key {PULL_KEY}"),
        (set(), True, "secret s (p) has no credentials for S3; its keys are token"),
    ],
)
def test_a_secret_lacks_a_key_and_its_value_is_never_shown(keys: set[str], is_s3: bool, words: str) -> None:
    tree = secret(token="c2VjcmV0LXZhbHVl")
    check = check_reference(SECRETS, "s", keys, tree, namespace="opd", path="p", is_s3=is_s3)
    assert check.state == ("MISSING" if words else "ok")
    assert words in check.message
    assert "c2Vj" not in check.message + check.fix


@pytest.mark.parametrize(
    ("keys", "words"),
    [((), "generic s -n opd --from-env-file=store.env"), (("token",), "generic s -n opd --from-file=token=..."),
     ((PULL_KEY,), "docker-registry s -n opd")],
)  # fmt: skip
def test_a_missing_secret_has_the_command_that_makes_it(keys: tuple[str, ...], words: str) -> None:
    check = check_reference(SECRETS, "s", keys, None, namespace="opd")
    assert check.fix.startswith(f"kubectl create secret {words}")
    assert redact(check.fix, environment={}) == check.fix


def test_a_missing_claim_is_reported_with_the_claims_that_there_are() -> None:
    check = check_reference(CLAIMS, "dta", (), None, namespace="opd", path="p", others=["data"])
    assert (check.name, "there are data" in check.message) == ("claim", True)


@pytest.mark.parametrize(
    ("wanted", "is_default", "state", "words"),
    [
        ("nfs", False, "ok", "nfs"),
        ("gone", False, "MISSING", "one of: disk, nfs"),
        (None, True, "ok", "default"),
        (None, False, "MISSING", "no StorageClass is the default"),
    ],
)
def test_the_class_of_a_run_s_own_volume_exists(wanted: str | None, is_default: bool, state: str, words: str) -> None:
    notes = {"storageclass.kubernetes.io/is-default-class": "true"} if is_default else {}
    classes = [{"metadata": {"name": "disk", "annotations": notes}}, {"metadata": {"name": "nfs"}}]
    check = check_class(wanted, classes, path="cluster.checkpoints.storageClass")
    assert check.state == state
    assert words in check.message + check.fix
