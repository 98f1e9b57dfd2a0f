"""`cluster.progress`: one ConfigMap that the head alone may read and patch, and nothing of it where it is off."""

import pytest
from tests.charts.helm import RUN, containers, env_of, objects, one, pod_templates
from tests.charts.policies import TABLE, of_chart

from opd.config import FILE_KINDS

ON = {"cluster": {"progress": {"enabled": True}}}
NAME = f"{RUN}-progress"


def tokens(pod):
    """Names of a pod's volumes that hold an API token."""
    return {
        volume["name"]
        for volume in pod["spec"].get("volumes", ())
        if any("serviceAccountToken" in source for source in volume.get("projected", {}).get("sources", ()))
    }


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_without_it_no_pod_has_a_token_and_the_run_no_right(kind):
    trees = objects(kind)
    assert not {"Role", "RoleBinding"} & {tree["kind"] for tree in trees}
    assert NAME not in {tree["metadata"]["name"] for tree in trees}
    assert not any(tokens(pod) for _, pod in pod_templates(trees))


def test_a_conversion_which_has_no_steps_to_tell_gets_nothing():
    trees = objects("convert", ON)
    assert not {"Role", "RoleBinding"} & {tree["kind"] for tree in trees}
    assert not any(tokens(pod) for _, pod in pod_templates(trees))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["K8sJobMode", "HTTPMode"])
@pytest.mark.parametrize("kind", [kind for kind in FILE_KINDS if kind != "convert"])
def test_the_token_is_in_the_container_of_the_driver_alone_and_nowhere_by_default(kind, mode):
    trees = objects(kind, ON, {"cluster": {"submissionMode": mode}})
    for role, pod in pod_templates(trees):
        assert pod["spec"]["automountServiceAccountToken"] is False
        volumes = tokens(pod)
        assert bool(volumes) == (role == "head")
        mounted = {
            container["name"]: mount["mountPath"]
            for container in containers(pod)
            for mount in container.get("volumeMounts", ())
            if mount["name"] in volumes
        }
        assert mounted == ({"ray-head": "/var/run/secrets/opd-progress"} if role == "head" else {})
        told = [container["name"] for container in containers(pod) if "OPD_PROGRESS_OBJECT" in env_of(container)]
        assert told == list(mounted)


def test_its_right_is_to_read_and_patch_the_one_object_that_the_chart_makes():
    trees = objects("opd", ON)
    assert one(trees, "ConfigMap", NAME)["metadata"]["labels"]["opd/run-id"] == RUN
    [rule] = one(trees, "Role")["rules"]
    assert rule == {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [NAME], "verbs": ["get", "patch"]}
    binding = one(trees, "RoleBinding")
    assert binding["roleRef"]["name"] == one(trees, "Role")["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": RUN, "namespace": "opd"}]
    path = env_of(next(pod for role, pod in pod_templates(trees) if role == "head")["spec"]["containers"][0])
    assert path["OPD_PROGRESS_OBJECT"] == f"/api/v1/namespaces/opd/configmaps/{NAME}"


def test_an_existing_account_is_the_one_that_gets_the_right():
    trees = objects("opd", ON, {"cluster": {"serviceAccount": {"name": "team"}}})
    assert one(trees, "RoleBinding")["subjects"][0]["name"] == "team"


@pytest.mark.cluster
def test_the_head_alone_reaches_the_api_server_and_nothing_else_opens():
    seen = of_chart(objects("opd", ON))
    assert seen.allows("head", "office", 6443)
    assert not seen.allows("worker", "office", 6443)
    assert not seen.allows("submitter", "office", 6443)
    assert not seen.allows("head", "metadata", 443)
    assert [row for row in TABLE if seen.allows(*row[:3]) is not row[3]] == []
    given = {"cluster": {"progress": {"enabled": True, "apiServer": {"cidr": "10.1.2.3/32", "ports": [16443]}}}}
    narrow = of_chart(objects("opd", given))
    assert narrow.allows("head", "office", 16443)
    assert not narrow.allows("head", "internet", 16443)
