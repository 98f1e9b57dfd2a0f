"""The pre-install check: a pod without GPUs that reads the file and its inputs before a RayJob exists."""

import pytest
from tests.charts.helm import IMAGE, RUN, containers, env_of, mounts, objects, one, pods, volumes

from opd.experiment import FILE_KINDS, load_text
from opd.experiment.cluster import load_cluster


def hooks(trees):
    found = [tree["metadata"] | {"kind": tree["kind"]} for tree in trees]
    return {item["kind"]: item for item in found if "helm.sh/hook" in item.get("annotations", {})}


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_a_job_reads_the_whole_file_before_anything_of_the_run_is_made(kind):
    trees = objects(kind, {"cluster": {"secrets": {"store": "s"}}})
    found = hooks(trees)
    assert found.keys() == {"Job", "ServiceAccount", "NetworkPolicy"}
    assert {metadata["annotations"]["helm.sh/hook"] for metadata in found.values()} == {"pre-install"}
    job = one(trees, "Job")
    [container] = [item for item in containers(job["spec"]["template"]) if item["name"] == "submitter"]
    assert container["command"] == ["python", "-m", "opd.launch", "/etc/opd/exp.json", "--check"]
    assert container["envFrom"] == [{"secretRef": {"name": "s"}}]
    assert not any("/" in name for name in container["resources"]["limits"])
    assert job["spec"]["backoffLimit"] == 0
    given = load_text(job["spec"]["template"]["metadata"]["annotations"]["opd/file"], is_json=True)
    assert given.spec == load_text(one(trees, "ConfigMap")["data"]["exp.json"], is_json=True).spec
    assert load_cluster(given.chart["cluster"], given.spec).image.ref == IMAGE["cluster"]["image"]["ref"]


def test_it_has_the_volumes_of_the_run_but_no_claim_that_is_not_there_yet():
    check = {"cluster": {"mounts": [{"claim": "data", "path": "/data"}]}}
    found = pods("opd", check, experiment="quickstart")
    ours, theirs = found["check"], found["head"]
    mounted = mounts(containers(ours)[0])
    assert mounted.keys() == mounts(containers(theirs)[0]).keys()
    assert volumes(ours)["mount-0"] == volumes(theirs)["mount-0"]
    assert volumes(ours)["checkpoints"]["emptyDir"] == {}
    named = pods("opd", {"cluster": {"checkpoints": {"claim": "mine"}}})["check"]
    assert volumes(named)["checkpoints"]["persistentVolumeClaim"] == {"claimName": "mine"}


@pytest.mark.parametrize("key", ["iam.gke.io/gcp-service-account", "eks.amazonaws.com/role-arn"])
def test_it_is_the_runs_account_in_the_cloud(key):
    trees = objects("opd", {"cluster": {"serviceAccount": {"annotations": {key: "x"}}}})
    for name in (RUN, f"{RUN}-check"):
        assert one(trees, "ServiceAccount", name)["metadata"]["annotations"][key] == "x"
    existing = objects("opd", {"cluster": {"serviceAccount": {"name": "team"}}})
    assert hooks(existing).keys() == {"Job", "NetworkPolicy"}
    assert one(existing, "Job")["spec"]["template"]["spec"]["serviceAccountName"] == "team"


def test_it_goes_where_the_submitter_goes_with_the_submitters_image():
    small = "registry.example.com/opd-cpu@sha256:" + "1" * 64
    given = {"image": small, "nodeSelector": {"pool": "cpu"}, "podSpec": {"runtimeClassName": "gvisor"}}
    found = pods("opd", {"cluster": {"submitter": given}})
    for role in ("submitter", "check"):
        spec = found[role]["spec"]
        assert (spec["nodeSelector"], spec["runtimeClassName"]) == ({"pool": "cpu"}, "gvisor")
        assert [item["image"] for item in spec["containers"]] == [small]
    assert "affinity" not in found["check"]["spec"]
    assert "OPD_INSTALL" not in env_of(containers(found["check"])[0]), "it stores no refusal"


def test_a_key_switches_it_off():
    assert not hooks(objects("opd", {"cluster": {"check": False}}))
