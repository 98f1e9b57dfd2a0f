"""Volumes: what a run keeps, what it shares, what it only borrows, and the tool database."""

import pytest
from tests.charts.helm import RUN, containers, head, objects, one, pod_templates, rayjob, refusal, worker
from tests.minimal import MINIMAL

from opd.config import FILE_KINDS

AGENT = {"experiment": "opd-agent-travel"}


def volumes(spec):
    return {item["name"]: item for item in spec["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["volumes"]}


def mounts(container):
    return {item["mountPath"]: item for item in container["volumeMounts"]}


def test_the_run_makes_its_claim_which_outlives_an_uninstall():
    trees = objects("opd", experiment="quickstart")
    claim = one(trees, "PersistentVolumeClaim")
    assert claim["metadata"]["name"] == f"{RUN}-checkpoints"
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert claim["spec"] == {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "500Gi"}}}
    used = volumes(one(trees, "RayJob")["spec"])["checkpoints"]
    assert used["persistentVolumeClaim"] == {"claimName": f"{RUN}-checkpoints"}


def test_the_claim_s_size_class_and_access_are_values():
    layer = {"cluster": {"checkpoints": {"size": "1Ti", "storageClass": "fast", "accessMode": "ReadWriteOnce"}}}
    spec = one(objects("opd", layer), "PersistentVolumeClaim")["spec"]
    assert (spec["storageClassName"], spec["accessModes"]) == ("fast", ["ReadWriteOnce"])
    assert spec["resources"]["requests"]["storage"] == "1Ti"


def test_an_existing_claim_is_used_and_none_is_made():
    trees = objects("opd", {"cluster": {"checkpoints": {"claim": "mine"}}})
    assert "PersistentVolumeClaim" not in {tree["kind"] for tree in trees}
    assert volumes(one(trees, "RayJob")["spec"])["checkpoints"]["persistentVolumeClaim"]["claimName"] == "mine"


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_relative_paths_of_the_spec_lie_on_the_run_s_volume(kind):
    for role, pod in pod_templates(objects(kind)):
        if role in ("head", "worker"):
            ray = pod["spec"]["containers"][0]
            assert mounts(ray)[ray["workingDir"]]["name"] == "checkpoints"


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_ray_writes_to_a_bounded_scratch_volume_and_home_is_writable(kind):
    spec = rayjob(kind, {"cluster": {"head": {"scratchSize": "7Gi"}}})
    assert volumes(spec)["scratch"]["emptyDir"] == {"sizeLimit": "7Gi"}
    assert {"/tmp", "/home/opd"} <= mounts(head(spec)).keys()


def test_claims_with_models_and_data_are_read_only_unless_said_otherwise():
    layer = {
        "cluster": {
            "mounts": [{"claim": "a", "path": "/a", "subPath": "x"}, {"claim": "b", "path": "/b", "readOnly": False}]
        }
    }
    spec = rayjob("opd", layer)
    assert mounts(head(spec))["/a"] == {"name": "mount-0", "mountPath": "/a", "readOnly": True, "subPath": "x"}
    assert mounts(worker(spec))["/b"] == {"name": "mount-1", "mountPath": "/b", "readOnly": False}
    assert volumes(spec)["mount-0"]["persistentVolumeClaim"] == {"claimName": "a", "readOnly": True}
    assert volumes(spec)["mount-1"]["persistentVolumeClaim"] == {"claimName": "b", "readOnly": False}


@pytest.mark.parametrize("path", ["/opd", "/tmp", "/dev/shm", "/etc/opd"])
def test_two_volumes_at_one_path_are_refused(path):
    assert "mounted there already" in refusal("opd", {"cluster": {"mounts": [{"claim": "a", "path": path}]}})


def test_more_volumes_of_any_kind_can_be_mounted():
    extra = {"extraVolumes": [{"name": "x", "emptyDir": {}}], "extraVolumeMounts": [{"name": "x", "mountPath": "/x"}]}
    spec = rayjob("opd", {"cluster": extra})
    assert volumes(spec)["x"] == {"name": "x", "emptyDir": {}}
    assert mounts(head(spec))["/x"] == {"name": "x", "mountPath": "/x"}


def test_the_tool_database_on_a_claim_is_read_only_where_the_spec_says_on_every_ray_pod():
    for role, pod in pod_templates(objects("opd-agent", **AGENT)):
        if role in ("head", "worker"):
            mount = mounts(pod["spec"]["containers"][0])["/databases/travel"]
            assert mount == {"name": "tool-database", "mountPath": "/databases/travel", "readOnly": True}
            source = {item["name"]: item for item in pod["spec"]["volumes"]}["tool-database"]
            assert source["persistentVolumeClaim"] == {"claimName": "travel-database", "readOnly": True}


def test_the_tool_database_can_be_fetched_and_verified_once_per_pod_instead():
    sha256 = "ab" * 32
    layer = {"cluster": {"toolDatabase": {"url": "s3://b/db.tar.gz", "sha256": sha256, "size": "1Gi"}, "secrets": {"store": "experiment-store"}}, "agent": {"database_dir": "/databases/x"}}  # fmt: skip
    for role, pod in pod_templates(objects("grpo", layer)):
        if role in ("head", "worker"):
            first = containers(pod)[0]
            assert first["command"] == [
                "python",
                "-m",
                "opd.pods.fetch",
                "s3://b/db.tar.gz",
                "--sha256",
                sha256,
                "--to",
                "/database",
            ]
            assert first["envFrom"] == [{"secretRef": {"name": "experiment-store"}}]
            source = {item["name"]: item for item in pod["spec"]["volumes"]}["tool-database"]
            assert source["emptyDir"] == {"sizeLimit": "1Gi"}
            assert mounts(pod["spec"]["containers"][0])["/databases/x"]["readOnly"] is True


@pytest.mark.parametrize(
    ("database", "path", "expected"),
    [
        ({}, "/databases/x", "no volume is mounted there"),
    ],
)
def test_a_tool_database_that_no_pod_would_find_is_refused(database, path, expected):
    layer = {**MINIMAL["opd-agent"], "agent": {"database_dir": path}, "cluster": {"toolDatabase": database}}  # fmt: skip
    assert expected in refusal("opd-agent", layer, experiment="")


def test_a_tool_database_on_a_mounted_claim_needs_nothing_more():
    layer = {**MINIMAL["opd-agent"], "agent": {"database_dir": "/data/db"}, "cluster": {"mounts": [{"claim": "c", "path": "/data"}]}}  # fmt: skip
    assert "tool-database" not in volumes(rayjob("opd-agent", layer, experiment=""))
