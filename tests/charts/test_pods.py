"""Pods: Pod Security `restricted`, identity, environment, volumes, placement and the merge of podSpec."""

import pytest
from tests.charts.helm import IMAGE, RUN, SERVE, containers, env_of, objects, pod_templates, pods, refusal, volumes

from opd.experiment import FILE_KINDS
from opd.experiment.sections import Output
from opd.pods.stop import DEFAULT_ROOT
from opd.store.access import STORE_VARIABLES

NAME = "opd-qwen3-8b-to-1.7b"
ALLOWED = {"configMap", "emptyDir", "persistentVolumeClaim", "projected", "downwardAPI"}


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_every_pod_meets_pod_security_restricted_and_asks_for_what_it_uses(kind):
    trees = objects(kind, SERVE if kind == "opd" else {})
    pods_of = dict(pod_templates(trees))
    more = {"convert": set(), "opd": {"worker", "teacher"}}.get(kind, {"worker"})
    assert set(pods_of) == {"head", "submitter", "check"} | more
    accounts = {tree["metadata"]["name"] for tree in trees if tree["kind"] == "ServiceAccount"}
    for pod in pods_of.values():
        spec = pod["spec"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert all(ALLOWED & volume.keys() for volume in spec["volumes"])
        assert spec["serviceAccountName"] in accounts
        assert (spec["automountServiceAccountToken"], spec["enableServiceLinks"]) == (False, False)
        security = spec["securityContext"]
        wanted = {"runAsNonRoot": True, "runAsUser": 1000, "fsGroupChangePolicy": "OnRootMismatch"}
        assert wanted.items() <= security.items()
        for container in containers(pod):
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context.get("readOnlyRootFilesystem", False) == (not container["name"].startswith("ray-"))
            assert container["image"] == IMAGE["cluster"]["image"]["ref"]
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
            assert "memory" in container["resources"]["limits"]


def test_ids_pull_secrets_and_a_read_only_root_are_values_of_every_pod():
    ids = {"runAsUser": 1000680000, "runAsGroup": None, "fsGroup": 2003, "readOnlyRootFilesystem": True}
    for pod in pods("opd", SERVE, {"cluster": {"podSecurity": ids, "image": {"pullSecrets": ["a"]}}}).values():
        context = pod["spec"]["securityContext"]
        assert f"{context['runAsUser']} {context['fsGroup']}" == "1000680000 2003", (
            "no float, as Helm makes of large numbers"
        )
        assert "runAsGroup" not in context, "null leaves it to the platform, as OpenShift wants"
        assert pod["spec"]["imagePullSecrets"] == [{"name": "a"}]
        assert all(item["securityContext"]["readOnlyRootFilesystem"] for item in containers(pod))


def test_labels_of_the_run_reach_every_pod_and_leave_kuberays_own_alone():
    given = {"team": "math", "sidecar.istio.io/inject": "false"}
    for role, pod in pods("opd", SERVE, {"cluster": {"labels": given}}).items():
        labels = pod["metadata"]["labels"]
        assert (labels["opd/run-id"], labels["app.kubernetes.io/component"]) == (RUN, role)
        assert given.items() <= labels.items()
        assert not {"app.kubernetes.io/name", "app.kubernetes.io/created-by"} & labels.keys()


@pytest.mark.parametrize("role", ["head", "worker", "teacher", "submitter"])
def test_placement_goes_to_the_group_that_it_is_given_for(role):
    placement = {
        "nodeSelector": {"a": "b"},
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "t", "whenUnsatisfiable": "DoNotSchedule"}],
        "priorityClassName": "high",
    }
    layer = {"cluster": {role: {**placement, "annotations": {"x/y": "z"}}}}
    found = pods("opd", SERVE, layer, experiment="quickstart")
    assert placement.items() <= found[role]["spec"].items()
    assert found[role]["metadata"]["annotations"]["x/y"] == "z"
    others = [pod["spec"] for name, pod in found.items() if name != role and (name, role) != ("check", "submitter")]
    assert not any(spec.keys() & (placement.keys() - {"affinity"}) for spec in others)


def ray(role, *layers):
    """Return the Ray container of a pod."""
    return pods("opd", *layers)[role]["spec"]["containers"][0]


def test_secrets_come_by_reference_to_the_pods_of_the_ray_cluster():
    secrets = {"huggingFace": {"secret": "hf", "key": "t"}, "wandb": {"secret": "wb", "key": "k"}, "store": "bucket"}
    for role in ("head", "worker", "teacher"):
        found = ray(role, SERVE, {"cluster": {"secrets": secrets, "envFrom": [{"configMapRef": {"name": "c"}}]}})
        assert env_of(found)["HF_TOKEN"] == {"secretKeyRef": {"name": "hf", "key": "t"}}
        assert env_of(found)["WANDB_API_KEY"] == {"secretKeyRef": {"name": "wb", "key": "k"}}
        assert found["envFrom"] == [{"secretRef": {"name": "bucket"}}, {"configMapRef": {"name": "c"}}]


def test_a_variable_is_set_once_and_the_experiments_outranks_ours_and_extra_env_both():
    extra = [{"name": "HOME", "value": "/h"}]
    entries = ray("head", {"env": {"HF_HOME": "/a", "HOME": "/e"}, "cluster": {"extraEnv": extra}})["env"]
    names = [item["name"] for item in entries]
    assert len(names) == len(set(names))
    assert {"name": "HF_HOME", "value": "/a"} in entries
    assert entries[-1:] == extra


def test_env_and_the_stores_server_are_in_every_container():
    told = {"endpoint": "https://minio.example:9000", "region": "eu-1", "addressing": "virtual"}
    values = {"env": {"NCCL_DEBUG": "INFO"}, "store": {"url": "s3://runs/opd", **told}}
    expected = {"NCCL_DEBUG": "INFO", **{STORE_VARIABLES[key][0]: value for key, value in told.items()}}
    for pod in pods("opd-agent", values, experiment="opd-agent-quickstart").values():
        for container in containers(pod):
            assert expected.items() <= env_of(container).items(), container["name"]


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy"])
def test_a_proxy_leaves_the_clusters_own_addresses_alone(name):
    proxy = {name: "http://proxy:3128"}
    envs = [env_of(ray("head", {"env": env})) for env in ({}, proxy, {**proxy, "NO_PROXY": "x"})]
    assert "NO_PROXY" not in envs[0]
    assert ".svc,.cluster.local" in envs[1]["NO_PROXY"]
    assert envs[2]["NO_PROXY"] == "x"


@pytest.mark.parametrize("experiment", [NAME, "quickstart"])
def test_a_container_without_a_gpu_sees_none_though_its_image_says_all(experiment):
    for role, pod in pods("opd", SERVE, experiment=experiment).items():
        for container in containers(pod):
            has_gpu = "nvidia.com/gpu" in container["resources"]["limits"]
            assert has_gpu == (role == "teacher" or (role == "worker" and experiment == NAME))
            assert env_of(container).get("NVIDIA_VISIBLE_DEVICES") == (None if has_gpu else "void")


@pytest.mark.parametrize(
    ("checkpoints", "source"),
    [({"claim": "mine"}, {"persistentVolumeClaim": {"claimName": "mine"}}), ({"ephemeral": True}, {"emptyDir": {}})],
)
def test_an_existing_claim_or_none_is_used_and_none_is_made(checkpoints, source):
    trees = objects("opd", {"cluster": {"checkpoints": checkpoints}, "store": {"url": "s3://b/x"}})
    assert "PersistentVolumeClaim" not in {tree["kind"] for tree in trees}
    assert volumes(dict(pod_templates(trees))["head"])["checkpoints"] == {"name": "checkpoints", **source}


def test_the_programs_in_pods_know_the_default_folder_of_runs():
    assert Output().root == DEFAULT_ROOT


SPOT = [{"key": "spot", "operator": "Exists", "effect": effect} for effect in ("NoSchedule", "NoExecute")]
SIDE = {"name": "side", "image": "x@sha256:" + "0" * 64}


def merged(pod_spec, **group):
    """Return the workers' pod spec under a podSpec."""
    return pods("opd", {"cluster": {"worker": {**group, "podSpec": pod_spec}}}, experiment=NAME)["worker"]["spec"]


def test_maps_merge_and_containers_merge_by_name():
    ours = merged({})["containers"][0]
    limits = {"limits": {"ephemeral-storage": "1Gi"}}
    own = {"name": "ray-worker", "env": [{"name": "HOME", "value": "/x"}], "resources": limits}
    spec = merged({"runtimeClassName": "nvidia", "containers": [own, SIDE]})
    theirs, side = spec["containers"]
    assert spec["runtimeClassName"] == "nvidia"
    assert (theirs["image"], theirs["lifecycle"]) == (ours["image"], ours["lifecycle"])
    assert {"name": "HOME", "value": "/x"} in theirs["env"]
    assert len(theirs["env"]) == len(ours["env"])
    assert theirs["resources"]["limits"] == {**ours["resources"]["limits"], "ephemeral-storage": "1Gi"}
    assert side["securityContext"] == ours["securityContext"], "an added container is as restricted as ours"


@pytest.mark.parametrize(("ours", "theirs"), [(SPOT, []), ([], SPOT), (SPOT[:1], SPOT[1:])])
def test_items_without_a_name_are_added(ours, theirs):
    assert merged({"tolerations": theirs} if theirs else {}, tolerations=ours)["tolerations"] == [*ours, *theirs]


def test_a_volume_is_replaced_whole_and_a_mount_is_known_by_its_path():
    volume = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}
    mount = {"name": "scratch", "mountPath": "/tmp", "readOnly": True}
    spec = merged({"volumes": [volume], "containers": [{"name": "ray-worker", "volumeMounts": [mount]}]})
    assert [item for item in spec["volumes"] if item["name"] == "scratch"] == [volume]
    assert [item for item in spec["containers"][0]["volumeMounts"] if item["name"] == "scratch"] == [mount]


def test_null_drops_a_field():
    limits = {"nvidia.com/gpu": None}
    spec = merged({"enableServiceLinks": None, "containers": [{"name": "ray-worker", "resources": {"limits": limits}}]})
    assert "enableServiceLinks" not in spec
    assert "nvidia.com/gpu" not in spec["containers"][0]["resources"]["limits"]


HOST = [{"name": "x", "hostPath": {"path": "/"}}]
TOKEN = [{"name": "x", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]
GUARDED = {
    "cluster.worker.podSpec.hostNetwork": {"worker": {"podSpec": {"hostNetwork": True}}},
    "cluster.teacher.podSpec.hostPID": {"teacher": {"podSpec": {"hostPID": True}}},
    "cluster.head.podSpec.securityContext": {"head": {"podSpec": {"securityContext": {"runAsUser": None}}}},
    "cluster.worker.podSpec.volumes.0.hostPath": {"worker": {"podSpec": {"volumes": HOST}}},
    "cluster.extraVolumes.0.hostPath": {"extraVolumes": HOST},
    "cluster.extraVolumes.0.projected.sources.0.serviceAccountToken": {"extraVolumes": TOKEN},
}


@pytest.mark.parametrize("key", GUARDED)
def test_what_security_rests_on_changes_only_under_an_explicit_key(key):
    said = refusal("opd", {"cluster": GUARDED[key]}, experiment=NAME)
    assert key in said
    assert "acceptUnrestricted" in said
    accepted = {"podSecurity": {"acceptUnrestricted": True}}
    assert objects("opd", {"cluster": GUARDED[key]}, {"cluster": accepted}, experiment=NAME)
