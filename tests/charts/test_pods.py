"""Every pod of every chart meets Pod Security `restricted` and carries no credentials it does not need."""

import pytest
from tests.charts.helm import IMAGE, RUN, containers, env_of, objects, one, pod_templates, rayjob
from tests.minimal import MINIMAL

from opd.config import FILE_KINDS

MODES = ("K8sJobMode", "HTTPMode")
ALL = [(kind, mode) for kind in FILE_KINDS for mode in MODES]
# With an init container, so that it is looked at too.
FETCH = {"agent": {"database_dir": "/db"}, "cluster": {"toolDatabase": {"url": "s3://b/db.tar.gz", "sha256": "0" * 64}}}


def trees_of(kind, mode):
    layer = {"cluster": {"submissionMode": mode}}
    if kind == "opd-agent":
        return objects(kind, MINIMAL[kind], FETCH, layer, experiment="")
    return objects(kind, layer)


def restricted_problems(pod):
    """What Pod Security `restricted` (v1.36) would refuse, for the fields that a chart can set."""
    spec = pod["spec"]
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(key):
            yield key
    for volume in spec.get("volumes", ()):
        if (
            not {"configMap", "emptyDir", "persistentVolumeClaim", "secret", "projected", "csi", "downwardAPI"}
            & volume.keys()
        ):
            yield f"volume {volume}"
    if spec["securityContext"]["seccompProfile"]["type"] != "RuntimeDefault":
        yield "seccomp"
    if spec["securityContext"]["runAsNonRoot"] is not True or spec["securityContext"]["runAsUser"] == 0:
        yield "root"
    for container in containers(pod):
        context = container["securityContext"]
        if context["allowPrivilegeEscalation"] is not False or context.get("privileged"):
            yield "privilege"
        if context["capabilities"] != {"drop": ["ALL"]}:
            yield "capabilities"
        if any("hostPort" in port for port in container.get("ports", ())):
            yield "hostPort"


@pytest.mark.parametrize(("kind", "mode"), ALL)
def test_every_pod_meets_pod_security_restricted(kind, mode):
    found = {role: list(restricted_problems(pod)) for role, pod in pod_templates(trees_of(kind, mode))}
    expected = (
        {"head", "test"}
        | ({"worker"} if kind != "convert" else set())
        | ({"submitter"} if mode == "K8sJobMode" else set())
    )
    assert found == {role: [] for role in expected}


@pytest.mark.parametrize(("kind", "mode"), ALL)
def test_every_pod_runs_as_the_run_s_own_account_without_its_token_and_without_service_links(kind, mode):
    trees = trees_of(kind, mode)
    for _, pod in pod_templates(trees):
        assert pod["spec"]["serviceAccountName"] == one(trees, "ServiceAccount")["metadata"]["name"]
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert pod["spec"]["enableServiceLinks"] is False
    assert one(trees, "ServiceAccount")["automountServiceAccountToken"] is False


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "mode"), ALL)
def test_volumes_change_group_only_where_they_must_and_the_ids_are_the_values(kind, mode):
    layer = {
        "cluster": {"submissionMode": mode, "podSecurity": {"runAsUser": 2001, "runAsGroup": 2002, "fsGroup": 2003}}
    }
    for _, pod in pod_templates(objects(kind, layer)):
        context = pod["spec"]["securityContext"]
        assert context["fsGroupChangePolicy"] == "OnRootMismatch"
        assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (2001, 2002, 2003)


@pytest.mark.parametrize(("kind", "mode"), ALL)
def test_every_container_says_what_it_needs_and_has_the_run_s_image(kind, mode):
    for _, pod in pod_templates(trees_of(kind, mode)):
        for container in containers(pod):
            assert container["image"] == IMAGE["cluster"]["image"]["ref"]
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
            assert "memory" in container["resources"]["limits"]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "mode"), ALL)
def test_pull_secrets_are_on_every_pod(kind, mode):
    layer = {"cluster": {"submissionMode": mode, "image": {"pullSecrets": ["a", "b"]}}}
    for _, pod in pod_templates(objects(kind, layer)):
        assert pod["spec"]["imagePullSecrets"] == [{"name": "a"}, {"name": "b"}]


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_labels_of_the_run_reach_every_pod_and_leave_kuberay_s_own_alone(kind):
    for role, pod in pod_templates(objects(kind, {"cluster": {"labels": {"team": "math"}}})):
        labels = pod["metadata"]["labels"]
        assert labels["opd/run-id"] == RUN
        assert labels["app.kubernetes.io/component"] == role
        assert labels["team"] == "math"
        if role != "test":  # KubeRay's head service selects by these two
            assert not {"app.kubernetes.io/name", "app.kubernetes.io/created-by"} & labels.keys()


@pytest.mark.parametrize("role", ["head", "worker", "submitter"])
def test_placement_goes_to_the_group_that_it_is_given_for(role):
    placement = {
        "nodeSelector": {"a": "b"},
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "t", "whenUnsatisfiable": "DoNotSchedule"}],
        "priorityClassName": "high",
    }
    pods = dict(
        pod_templates(
            objects("opd", {"cluster": {role: {**placement, "annotations": {"x/y": "z"}}}}, experiment="quickstart")
        )
    )
    spec = pods[role]["spec"]
    assert {key: spec[key] for key in placement} == placement
    assert pods[role]["metadata"]["annotations"]["x/y"] == "z"
    others = [pod["spec"] for name, pod in pods.items() if name not in (role, "test")]
    assert not any(spec.keys() & placement.keys() for spec in others)


def test_the_submitter_is_our_own_and_gets_no_credentials():
    secrets = {"wandb": {"secret": "w", "key": "k"}, "store": "s", "huggingFace": {"secret": "h", "key": "t"}}
    pods = dict(pod_templates(objects("opd", {"cluster": {"secrets": secrets}})))
    [container] = pods["submitter"]["spec"]["containers"]
    assert pods["submitter"]["spec"]["restartPolicy"] == "Never"
    assert [*container["command"], *container["args"]] == [
        "python", "-m", "opd.pods.submit", "--", "python", "-m", "opd.pods.start", "/etc/opd/exp.json",
    ]  # fmt: skip
    assert env_of(container).keys() == {"HOME", "NVIDIA_VISIBLE_DEVICES"}
    assert "envFrom" not in container


def test_the_submitter_is_retried_more_often_than_kuberay_would():
    assert rayjob("opd")["submitterConfig"]["backoffLimit"] == 20
