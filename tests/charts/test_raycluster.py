"""Head and workers: fixed sizes, logical resources only where there are no real ones, a place for the object store."""

import pytest
from tests.charts.helm import ROOT, containers, head, objects, pod_templates, rayjob, worker

from chartgen.constants import locked_version
from opd.config import FILE_KINDS, KINDS, parse_tree

RUNS = [kind for kind in KINDS if kind != "convert"]


def groups(spec):
    return spec["rayClusterSpec"]["workerGroupSpecs"]


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize("num_nodes", [1, 3])
def test_there_are_as_many_workers_as_the_trainer_has_nodes_and_never_another_number(kind, num_nodes):
    sizes = {"trainer": {"nnodes": num_nodes}, "actor": {"use_dynamic_bsz": True, "ppo_mini_batch_size": 192},
             "data": {"train_batch_size": 192}, "cluster": {"submissionMode": "K8sJobMode"}}  # fmt: skip
    [group] = groups(rayjob(kind, sizes))
    assert {group["replicas"], group["minReplicas"], group["maxReplicas"]} == {num_nodes}


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_the_cluster_does_not_scale_by_itself_and_keeps_no_state_outside(kind):
    cluster = rayjob(kind)["rayClusterSpec"]
    assert cluster["enableInTreeAutoscaling"] is False
    assert "gcsFaultToleranceOptions" not in cluster


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_the_head_offers_no_cpu_so_that_no_training_lands_on_it(kind):
    assert rayjob(kind)["rayClusterSpec"]["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_ray_start_parameters_are_strings_and_no_group_has_resources_beside_them(kind):
    cluster = rayjob(kind)["rayClusterSpec"]
    for group in [cluster["headGroupSpec"], *cluster.get("workerGroupSpecs", ())]:
        assert "resources" not in group
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())


def test_gpus_are_counted_by_the_spec_alone():
    spec = rayjob(
        "opd", {"trainer": {"gpus_per_node": 4}, "actor": {"use_dynamic_bsz": True}}, experiment="opd-qwen3-8b-to-1.7b"
    )
    resources = worker(spec)["resources"]
    assert resources["limits"]["nvidia.com/gpu"] == resources["requests"]["nvidia.com/gpu"] == 4
    assert groups(spec)[0]["rayStartParams"]["num-gpus"] == "4"


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_gpus_that_are_not_given_follow_the_spec_s_own_default(device):
    tree = {"kind": "opd", "device": device, "model": {"path": "m"}, "teacher": {"path": "t"}}
    given = parse_tree(tree).spec.trainer.gpus_per_node
    assert groups(rayjob("opd", tree, experiment=""))[0]["rayStartParams"]["num-gpus"] == str(given)


def test_a_run_on_the_cpu_has_logical_slots_and_asks_for_no_device():
    spec = rayjob("opd", experiment="quickstart")
    parameters = groups(spec)[0]["rayStartParams"]
    assert (parameters["num-gpus"], parameters["num-cpus"]) == ("1", "5")  # a rank's 3, a storage unit, its controller
    assert not [key for key in worker(spec)["resources"]["limits"] if "/" in key]


def test_a_conversion_has_no_workers_and_a_head_that_holds_the_model():
    spec = rayjob("convert")
    assert "workerGroupSpecs" not in spec["rayClusterSpec"]
    assert head(spec)["resources"]["requests"]["memory"] == "64Gi"


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_shared_memory_is_a_memory_volume_of_its_own_size_that_holds_the_object_store(kind):
    layer = {"cluster": {"head": {"shmGib": 1.5, "objectStoreGib": 0.5}}}
    group = rayjob(kind, layer)["rayClusterSpec"]["headGroupSpec"]
    [volume] = [item for item in group["template"]["spec"]["volumes"] if item["name"] == "shared-mem"]
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "1536Mi"}
    assert group["rayStartParams"]["object-store-memory"] == str(2**29)
    mounts = {item["mountPath"] for item in group["template"]["spec"]["containers"][0]["volumeMounts"]}
    assert "/dev/shm" in mounts


def test_the_ray_version_is_the_lock_s():
    assert rayjob("opd")["rayClusterSpec"]["rayVersion"] == locked_version(ROOT / "uv.lock", "ray")


@pytest.mark.slow
@pytest.mark.parametrize("kind", FILE_KINDS)
def test_a_token_guards_ray_unless_it_is_switched_off(kind):
    assert rayjob(kind)["rayClusterSpec"]["authOptions"] == {"mode": "token"}
    off = rayjob(kind, {"cluster": {"auth": {"token": False}}})
    assert off["rayClusterSpec"]["authOptions"] == {"mode": "disabled"}
    named = rayjob(kind, {"cluster": {"auth": {"secret": "ray-token"}}})
    assert named["rayClusterSpec"]["authOptions"] == {"mode": "token", "secretName": "ray-token"}


def test_a_gpu_type_becomes_a_node_selector_beside_the_user_s_own():
    layer = {"cluster": {"gpu": {"type": "NVIDIA-H200"}, "worker": {"nodeSelector": {"pool": "a"}}}}
    pod = groups(rayjob("opd", layer, experiment="opd-qwen3-8b-to-1.7b"))[0]["template"]["spec"]
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H200", "pool": "a"}


def test_rdma_devices_are_opt_in_and_the_capability_a_second_step():
    plain = worker(rayjob("opd", experiment="opd-qwen3-8b-to-1.7b"))
    assert not [key for key in plain["resources"]["limits"] if key.startswith("rdma/")]
    rdma = {"enabled": True, "resource": "rdma/ib", "count": 4}
    devices = worker(rayjob("opd", {"cluster": {"rdma": rdma}}, experiment="opd-qwen3-8b-to-1.7b"))
    assert devices["resources"]["limits"]["rdma/ib"] == devices["resources"]["requests"]["rdma/ib"] == 4
    assert devices["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    locked = worker(rayjob("opd", {"cluster": {"rdma": {**rdma, "ipcLock": True}}}))
    assert locked["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert head(rayjob("opd", {"cluster": {"rdma": {**rdma, "ipcLock": True}}}))["securityContext"]["capabilities"] == {"drop": ["ALL"]}  # fmt: skip


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_ray_pods_ask_for_a_save_before_they_go_and_have_the_time_for_it(kind):
    layer = {"cluster": {"stop": {"saveSeconds": 900, "marginSeconds": 45}}}
    for role, pod in pod_templates(objects(kind, layer)):
        if role in ("head", "worker"):
            command = pod["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
            assert command == ["/bin/sh", "-c", "python -m opd.pods.stop /etc/opd/exp.json; ray stop"]
            assert pod["spec"]["terminationGracePeriodSeconds"] == 945
            env = {item["name"]: item.get("value") for item in containers(pod)[-1 if role == "worker" else 0]["env"]}
            assert env["OPD_SAVE_SECONDS"] == env["RAY_JOB_STOP_WAIT_TIME_S"] == "900"
            assert env["RAY_JOB_STOP_SIGNAL"] == "SIGINT"


def test_in_http_mode_the_head_prints_the_driver_s_log_and_there_is_no_submitter():
    http = rayjob("opd", {"cluster": {"submissionMode": "HTTPMode"}})
    assert not {"submitterPodTemplate", "submitterConfig"} & http.keys()
    ray, log = http["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"]
    assert ray["name"] == "ray-head"  # KubeRay gives `ray start` to the first one
    assert log["command"] == ["python", "-m", "opd.pods.follow", "/tmp/ray/session_latest/logs"]
    shared = {item["mountPath"]: item["name"] for item in ray["volumeMounts"]}["/tmp"]
    assert log["volumeMounts"] == [{"name": shared, "mountPath": "/tmp", "readOnly": True}]


def test_starts_within_one_ray_cluster_are_bounded():
    spec = rayjob("opd", {"cluster": {"retries": {"startsPerCluster": 5}}})
    assert {"name": "OPD_STARTS_PER_CLUSTER", "value": "5"} in head(spec)["env"]


def test_ray_s_containers_cannot_write_to_their_image_where_the_values_say_so():
    spec = rayjob("opd", {"cluster": {"podSecurity": {"readOnlyRootFilesystem": True}}})
    for container in (head(spec), worker(spec)):
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        # Ray's sessions, caches and compiled kernels, the run, shared memory: all that is written lies on volumes.
        assert {"/tmp", "/home/opd", "/opd", "/dev/shm"} <= {mount["mountPath"] for mount in container["volumeMounts"]}
    assert "readOnlyRootFilesystem" not in head(rayjob("opd"))["securityContext"]


@pytest.mark.parametrize("mode", ["HTTPMode", "K8sJobMode"])
def test_side_containers_cannot_write_to_their_image(mode):
    layer = {"cluster": {"submissionMode": mode}}
    containers = [
        container
        for _, pod in pod_templates(objects("opd", layer))
        for container in pod["spec"]["containers"] + pod["spec"].get("initContainers", [])
    ]
    side = {item["name"]: item for item in containers if not item["name"].startswith("ray-")}
    assert {"submitter"} <= side.keys() if mode == "K8sJobMode" else {"log"} <= side.keys()
    for container in side.values():
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
