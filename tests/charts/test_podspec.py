"""`podSpec`: what a platform needs beyond the schema, over what the charts render, by helm and by the tool alike."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.charts.helm import EXPERIMENTS, IMAGE, head, objects, pod_templates, refusal, template, worker
from tests.charts.test_conformance import conform

from opd.config import SpecError, load_text
from opd.config.cluster.rules import load_cluster

Tree = dict[str, Any]
NAME = "opd-qwen3-8b-to-1.7b"
IDS = ["securityContext.runAsUser", "securityContext.runAsGroup", "securityContext.fsGroup"]
SIDE = {
    "name": "mount",
    "image": "registry.example.com/fuse@sha256:" + "0" * 64,
    "restartPolicy": "Always",
    "resources": {"requests": {"cpu": "100m"}},
}
CLAIM = {"metadata": {"labels": {"a": "b"}}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Ti"}}}}  # fmt: skip
GPU = "nvidia.com/gpu"
# What somebody's cluster needs -> podSpec of the workers.
NEEDS: dict[str, Tree] = {
    "runtimeClassName": {"runtimeClassName": "nvidia"},
    "schedulerName": {"schedulerName": "volcano"},
    "side-car": {"initContainers": [SIDE], "containers": [{**SIDE, "name": "log", "restartPolicy": "Always"}]},
    "resourceClaims": {
        "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "eight-gpus"}],
        "containers": [{"name": "ray-worker", "resources": {"claims": [{"name": "gpus"}]}}],
        "unset": [f"containers.ray-worker.resources.{field}.{GPU}" for field in ("limits", "requests")],
    },
    "hostNetwork": {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"},
    "ephemeral-volume": {"volumes": [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": CLAIM}}]},
    "env-per-group": {"containers": [{"name": "ray-worker", "env": [{"name": "NCCL_DEBUG", "value": "INFO"}]}]},
    "unset": {"unset": IDS},
}
UNGUARDED = {"podSecurity": {"acceptUnrestricted": True}}


def layer(need: str, role: str = "worker") -> Tree:
    """Values that say it."""
    return {"cluster": {role: {"podSpec": NEEDS[need]}, **(UNGUARDED if need == "hostNetwork" else {})}}


def workers(*layers: Tree) -> Tree:
    """The workers' pod spec."""
    return dict(pod_templates(objects("opd", *layers, experiment=NAME)))["worker"]["spec"]


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[str, str]]]:
    """kubeconform's verdicts on what each need renders: (status, message) an object."""
    folder = tmp_path_factory.mktemp("rendered")
    for need in NEEDS:
        done = template("opd", IMAGE, layer(need), experiment=NAME)
        assert done.returncode == 0, f"{need}: {done.stderr}"
        (folder / f"{need}.yaml").write_text(done.stdout)
    found: dict[str, list[tuple[str, str]]] = {}
    for case, _, status, message in conform(folder):
        found.setdefault(case.removesuffix(".yaml"), []).append((status, message))
    return found


@pytest.mark.cluster
@pytest.mark.parametrize("need", NEEDS)
def test_what_a_platform_needs_beyond_the_schema_is_rendered_and_valid(need: str, verdicts: Any) -> None:
    assert {status for status, _ in verdicts[need]} == {"statusValid"}, verdicts[need]
    spec = workers(layer(need))
    assert spec["containers"][0]["name"] == "ray-worker", "KubeRay gives `ray start` to the first one"
    plain = {key: value for key, value in NEEDS[need].items() if not isinstance(value, list)}
    assert {key: spec[key] for key in plain} == plain


def test_maps_merge_and_named_items_merge_one_by_one() -> None:
    own = {"name": "ray-worker", "env": [{"name": "HOME", "value": "/x"}], "volumeMounts": [{"mountPath": "/tmp", "subPath": "a"}]}  # fmt: skip
    patch = {"containers": [own], "volumes": NEEDS["ephemeral-volume"]["volumes"], "tolerations": [{"key": "b", "operator": "Exists"}]}  # fmt: skip
    base = {"tolerations": [{"key": "a", "operator": "Exists"}]}
    before = workers({"cluster": {"worker": base}})
    after = workers({"cluster": {"worker": {**base, "podSpec": patch}}})
    [was], [now] = before["containers"], after["containers"]
    assert (now["image"], now["resources"], now["lifecycle"]) == (was["image"], was["resources"], was["lifecycle"])
    assert [item["name"] for item in now["env"]] == [item["name"] for item in was["env"]]
    assert {"name": "HOME", "value": "/x"} in now["env"]
    assert {"name": "scratch", "mountPath": "/tmp", "subPath": "a"} in now["volumeMounts"]
    assert len(now["volumeMounts"]) == len(was["volumeMounts"])
    [scratch] = [item for item in after["volumes"] if item["name"] == "scratch"]
    assert scratch.keys() == {"name", "ephemeral"}, "two sources in one volume would be refused"
    assert [item["key"] for item in after["tolerations"]] == ["a", "b"]


def test_an_added_container_is_as_restricted_as_ours() -> None:
    spec = workers(layer("side-car"))
    ours, added = spec["containers"]
    assert added["securityContext"] == spec["initContainers"][0]["securityContext"] == ours["securityContext"]


@pytest.mark.parametrize("role", ["head", "worker", "submitter"])
def test_user_and_groups_are_left_to_the_platform_by_unset(role: str) -> None:
    pods = dict(pod_templates(objects("opd", layer("unset", role), experiment=NAME)))
    for name, pod in pods.items():
        left = {"runAsUser", "runAsGroup", "fsGroup"} & pod["spec"]["securityContext"].keys()
        assert bool(left) == (name != role and not (name == "test" and role == "submitter"))
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True


def test_a_path_to_drop_that_the_pod_does_not_have_is_refused() -> None:
    said = refusal("opd", {"cluster": {"head": {"podSpec": {"unset": ["terminationGracePeriod"]}}}}, experiment=NAME)
    assert "cluster.head.podSpec.unset.0" in said
    assert "no such field" in said


GUARDED: dict[str, Tree] = {
    "cluster.worker.podSpec.hostNetwork": {"hostNetwork": True},
    "cluster.worker.podSpec.hostPID": {"hostPID": True},
    "cluster.worker.podSpec.hostIPC": {"hostIPC": True},
    "cluster.worker.podSpec.serviceAccountName": {"serviceAccountName": "admin"},
    "cluster.worker.podSpec.automountServiceAccountToken": {"automountServiceAccountToken": True},
    "cluster.worker.podSpec.securityContext": {"securityContext": {"runAsUser": 0}},
    "cluster.worker.podSpec.containers.0.securityContext": {"containers": [{"name": "x", "securityContext": {"privileged": True}}]},
    "cluster.worker.podSpec.volumes.0.hostPath": {"volumes": [{"name": "x", "hostPath": {"path": "/"}}]},
    "cluster.worker.podSpec.unset.1": {"unset": [IDS[0], "securityContext.runAsNonRoot"]},
    "cluster.worker.podSpec.unset": {"unset": "securityContext.runAsUser"},
}  # fmt: skip


def tools_problems(cluster: Tree) -> list[Any]:
    """What the tool says of the cluster section."""
    spec = load_text(EXPERIMENTS[NAME].read_text()).spec
    try:
        load_cluster(cluster, spec)
    except SpecError as error:
        return error.problems
    return []


@pytest.mark.slow
@pytest.mark.parametrize("key", GUARDED)
def test_what_security_rests_on_changes_only_under_an_explicit_key(key: str) -> None:
    cluster = {"worker": {"podSpec": GUARDED[key]}}
    said = refusal("opd", {"cluster": cluster}, experiment=NAME)
    [problem] = tools_problems(cluster)
    assert problem.path == key
    for part in (key, problem.rule, problem.fix):
        assert part in said
    if key.endswith(".unset"):
        return  # wrong whatever is accepted
    assert "acceptUnrestricted" in problem.fix
    assert tools_problems({**cluster, **UNGUARDED}) == []


def test_under_that_key_it_is_rendered() -> None:
    patch = {**GUARDED["cluster.worker.podSpec.volumes.0.hostPath"], "securityContext": {"runAsUser": 7}}
    spec = workers({"cluster": {"worker": {"podSpec": patch}, **UNGUARDED}})
    assert spec["securityContext"]["runAsUser"] == 7
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert {"name": "x", "hostPath": {"path": "/"}} in spec["volumes"]


def test_the_submitter_may_have_a_smaller_image_of_its_own_by_digest() -> None:
    small = "registry.example.com/opd-cpu@sha256:" + "1" * 64
    pods = dict(pod_templates(objects("opd", {"cluster": {"submitter": {"image": small}}})))
    images = {role: {item["image"] for item in pod["spec"]["containers"]} for role, pod in pods.items()}
    ours = {IMAGE["cluster"]["image"]["ref"]}
    assert images == {"head": ours, "worker": ours, "test": ours, "submitter": {small}}
    assert "cluster.submitter.image" in refusal("opd", {"cluster": {"submitter": {"image": "opd-cpu:latest"}}})


@pytest.mark.parametrize("experiment", [NAME, "quickstart"])
def test_a_container_without_a_gpu_sees_none_though_its_image_says_all(experiment: str) -> None:
    trees = objects("opd", experiment=experiment)
    for role, pod in pod_templates(trees):
        for container in pod["spec"]["containers"]:
            has_gpu = GPU in container["resources"]["limits"]
            assert has_gpu == (role == "worker" and experiment == NAME)
            values = [item["value"] for item in container["env"] if item["name"] == "NVIDIA_VISIBLE_DEVICES"]
            assert values == ([] if has_gpu else ["void"]), f"{role}: {container['name']}"


def test_the_environment_may_still_say_which_devices_are_seen() -> None:
    [job] = [
        tree["spec"] for tree in objects("opd", {"env": {"NVIDIA_VISIBLE_DEVICES": "0"}}) if tree["kind"] == "RayJob"
    ]
    for container in (head(job), worker(job)):
        assert [item["value"] for item in container["env"] if item["name"] == "NVIDIA_VISIBLE_DEVICES"] == ["0"]


DO_NOT_MOVE = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}


@pytest.mark.parametrize(("kind", "wanted"), [("opd", 3), ("convert", 1)])
def test_drains_and_autoscalers_leave_a_run_s_ray_pods_alone(kind: str, wanted: int) -> None:
    sizes = {"trainer": {"nnodes": 2}} if kind == "opd" else {}
    trees = objects(kind, sizes, **({"experiment": NAME} if kind == "opd" else {}))
    [budget] = [tree["spec"] for tree in trees if tree["kind"] == "PodDisruptionBudget"]
    # A number: a percentage or maxUnavailable asks the pods' owner for a scale, which a RayCluster does not have.
    assert budget["minAvailable"] == wanted
    for role, pod in pod_templates(trees):
        chosen = all(
            pod["metadata"]["labels"].get(key) == value for key, value in budget["selector"]["matchLabels"].items()
        )
        [expression] = budget["selector"]["matchExpressions"]
        chosen = chosen and pod["metadata"]["labels"]["app.kubernetes.io/component"] in expression["values"]
        assert chosen == (role in ("head", "worker"))
        assert (DO_NOT_MOVE.items() <= pod["metadata"].get("annotations", {}).items()) == chosen


def test_both_are_switched_off_by_a_key_and_annotations_of_the_user_s_own_win() -> None:
    off = {"disruption": {"budget": False, "autoscalers": False}}
    trees = objects("opd", {"cluster": off})
    assert "PodDisruptionBudget" not in {tree["kind"] for tree in trees}
    assert not any(set(DO_NOT_MOVE) & pod["metadata"].get("annotations", {}).keys() for _, pod in pod_templates(trees))
    mine = {"karpenter.sh/do-not-disrupt": "false"}
    pods = dict(pod_templates(objects("opd", {"cluster": {"worker": {"annotations": mine}}})))
    assert json.dumps(mine)[1:-1] in json.dumps(pods["worker"]["metadata"]["annotations"])
