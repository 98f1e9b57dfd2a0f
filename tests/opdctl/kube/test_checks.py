"""Doctor's checks of a cluster, over objects as its API server gives them."""

from functools import partial
from typing import Any

import pytest
from tests.opdctl.kube.conftest import FakeApi, Tree

from opd.redaction import redact
from opdctl.doctor import CRD_PATH, checked, find_class, find_kuberay, find_namespace, find_object, find_rights
from opdctl.kube.client import CLASSES
from opdctl.kube.objects import CLAIMS, PULL_KEY, QUEUES, SECRETS

CORE = "/api/v1/namespaces/opd"


def api_of(objects: dict[str, Tree], *, is_allowed: bool = True) -> FakeApi:
    """An API server with objects by their path."""
    review = {"status": {"allowed": is_allowed}}
    return FakeApi(lambda method, path, query: (201, review) if method == "POST" else
                   (200, objects[path]) if path in objects else None)  # fmt: skip


def crd(*fields: str) -> Tree:
    spec = {"properties": {"spec": {"properties": {name: {} for name in fields}}}}
    return {"spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": spec}}]}}


@pytest.mark.parametrize(
    ("look", "objects", "is_allowed", "state", "words"),
    [
        (find_kuberay, {CRD_PATH: crd("preRunningDeadlineSeconds")}, True, "ok", "1.6 or newer"),
        (find_kuberay, {CRD_PATH: crd("entrypoint")}, True, "MISSING", "older than 1.6"),
        (find_kuberay, {}, True, "MISSING", "KubeRay is not installed"),
        (find_namespace, {CORE: {}}, True, "ok", "opd"),
        (find_namespace, {}, True, "MISSING", "there is no namespace opd"),
        (find_rights, {}, True, "ok", "may install"),
        (find_rights, {}, False, "MISSING", "create rayjobs"),
    ],
)
def test_kuberay_the_namespace_and_rights_are_checked(look: Any, objects: dict, is_allowed: bool, state: str, words: str) -> None:  # fmt: skip
    check = checked("x", partial(look, api_of(objects, is_allowed=is_allowed)))
    assert check.state == state
    assert words in check.message
    assert bool(check.fix) == (state == "MISSING")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"token"}, ""),
        ({"other"}, "secret s has no key other; its keys are token"),
        ({PULL_KEY}, f"secret s has no key {PULL_KEY}"),
    ],
)
def test_a_secret_lacks_a_key_and_its_value_is_never_shown(keys: set[str], words: str) -> None:
    api = api_of({f"{CORE}/secrets/s": {"data": {"token": "c2VjcmV0LXZhbHVl"}}})
    check = checked("secret", partial(find_object, api, SECRETS, "s", keys))
    assert check.state == ("MISSING" if words else "ok")
    assert words in check.message
    assert "c2Vj" not in check.message + check.fix


@pytest.mark.parametrize(
    ("resource", "keys", "fix"),
    [
        (SECRETS, {"token"}, "kubectl create secret generic s -n opd"),
        (SECRETS, {PULL_KEY}, "kubectl create secret docker-registry s -n opd"),
        (CLAIMS, (), "components/claims"),
        (QUEUES, (), "components/kueue"),
    ],
)
def test_what_is_missing_has_the_command_or_manifest_that_makes_it(resource: str, keys: set[str], fix: str) -> None:
    check = checked("x", partial(find_object, api_of({}), resource, "s", set(keys)))
    assert check.message.endswith(" s is not in namespace opd")
    assert fix in check.fix
    assert redact(check.fix) == check.fix


@pytest.mark.parametrize(
    ("wanted", "is_default", "state", "words"),
    [
        ("nfs", False, "ok", "nfs"),
        ("gone", False, "MISSING", "one of: disk, nfs"),
        ("", True, "ok", "disk"),
        ("", False, "MISSING", "no StorageClass that is the default"),
    ],
)
def test_the_class_of_a_run_s_own_volume_exists(wanted: str, is_default: bool, state: str, words: str) -> None:
    notes = {"storageclass.kubernetes.io/is-default-class": "true"} if is_default else {}
    classes = [{"metadata": {"name": "disk", "annotations": notes}}, {"metadata": {"name": "nfs"}}]
    look = partial(find_class, api_of({CLASSES: {"items": classes}}), wanted)
    check = checked("storage", look)
    assert check.state == state
    assert words in check.message + check.fix
