"""The RayJob: how a run is submitted, retried, limited in time, cleaned up and sized."""

import pytest
from tests.charts.helm import EXPERIMENTS, SERVE, env_of, head, kind_of, objects, one, pods, rayjob, volumes, worker
from tests.minimal import MINIMAL

from opd.experiment import FILE_KINDS, load_text, parse_tree
from opd.experiment.pipeline import all_sizes

NAME = "opd-qwen3-8b-to-1.7b"
OPD = {**MINIMAL["opd"], "trainer": {"gpus_per_node": 8}}


def groups(spec):
    return spec["rayClusterSpec"]["workerGroupSpecs"]


def rules(spec):
    return [(rule["policy"], rule["condition"]) for rule in spec["deletionStrategy"]["deletionRules"]]


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_each_chart_renders_one_rayjob_with_a_fixed_command_and_a_head_without_training(kind):
    nasty = {"env": {"A": "$(rm -rf /); `id` 'q' \"d\" && | > <"}}
    job = one(objects(kind, nasty), "RayJob")
    assert (job["apiVersion"], job["metadata"]["name"]) == ("ray.io/v1", "my-run")
    assert job["spec"]["entrypoint"] == "python -m opd.pods.start /etc/opd/exp.json"
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["enableInTreeAutoscaling"] is False
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert all(isinstance(value, str) for group in [cluster["headGroupSpec"], *cluster.get("workerGroupSpecs", ())]
               for value in group["rayStartParams"].values())  # fmt: skip


def test_null_keeps_the_rayjob_which_argo_cd_would_make_again():
    kept = {"cluster": {"cleanUp": {"succeeded": {"selfSeconds": None}, "failed": {"selfSeconds": None}}}}
    assert "DeleteSelf" not in dict(rules(rayjob("opd", kept)))


def test_a_zero_survives_every_template():
    zeros = {"workersSeconds": 0, "clusterSeconds": 0, "selfSeconds": 0}
    layer = {"cluster": {"cleanUp": {"succeeded": zeros, "failed": zeros}, "retries": {"backoffLimit": 0, "submitterBackoffLimit": 0}}}  # fmt: skip
    spec = rayjob("opd", layer)
    assert [at["ttlSeconds"] for _, at in rules(spec)] == [0] * 6
    assert (spec["backoffLimit"], spec["submitterConfig"]["backoffLimit"]) == (0, 0)


def test_retries_deadlines_and_times_to_save_reach_kuberay_and_the_trainer():
    layer = {"cluster": {"retries": {"backoffLimit": 7, "startsPerCluster": 5}, "stop": {"saveSeconds": 900, "marginSeconds": 45},
                         "deadlines": {"activeSeconds": 9000, "preRunningSeconds": 600}}}  # fmt: skip
    spec = rayjob("opd", layer)
    assert (spec["backoffLimit"], spec["activeDeadlineSeconds"], spec["preRunningDeadlineSeconds"]) == (7, 9000, 600)
    told = env_of(head(spec))
    expected = {"OPD_SAVE_SECONDS": "900", "RAY_JOB_STOP_WAIT_TIME_S": "900", "RAY_JOB_STOP_SIGNAL": "SIGINT", "OPD_STARTS_PER_CLUSTER": "5"}  # fmt: skip
    assert expected.items() <= told.items()
    assert env_of(worker(spec))["RAY_gcs_rpc_server_reconnect_timeout_s"] == "30"
    for group in (spec["rayClusterSpec"]["headGroupSpec"], *groups(spec)):
        pod = group["template"]["spec"]
        assert pod["terminationGracePeriodSeconds"] == 945
        command = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        assert command == ["/bin/sh", "-c", "python -m opd.pods.stop /etc/opd/exp.json; ray stop"]


def test_all_pods_of_a_rayjob_name_one_installation_and_another_file_is_another():
    first, second = rayjob("opd"), rayjob("opd", {"seed": 7})
    assert env_of(head(first))["OPD_INSTALL"] == env_of(worker(first))["OPD_INSTALL"]
    assert env_of(head(first))["OPD_INSTALL"] != env_of(head(second))["OPD_INSTALL"]


@pytest.mark.parametrize(
    ("manager", "keys"),
    [("kueue", ("kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class")),
     ("volcano", ("volcano.sh/queue-name", "ray.io/priority-class-name"))],
)  # fmt: skip
def test_kueue_and_volcano_find_their_queue_in_labels(manager, keys):
    queue = {"manager": manager, "name": "q", "priorityClass": "p"}
    lifecycle = {"lifecycle": "suspendable"} if manager == "kueue" else {}
    labels = one(objects("opd", {"cluster": {"queue": queue, **lifecycle}}), "RayJob")["metadata"]["labels"]
    assert [labels[key] for key in keys] == ["q", "p"]


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if kind_of(name) != "pipeline"])
def test_pods_ask_for_at_least_what_the_run_needs(name):
    sizes = all_sizes(load_text(EXPERIMENTS[name].read_text()).spec)
    spec = rayjob(kind_of(name), experiment=name)
    asked = [(head(spec), 2 if sizes else 4), *((worker(spec), each.node_cpus) for each in sizes)]
    for container, cpus in asked:
        requests, limits = container["resources"]["requests"], container["resources"]["limits"]
        assert requests["cpu"] == cpus, "Ray places by CPUs"
        assert limits["memory"] == requests["memory"]
        assert "cpu" not in limits
    for each in sizes:
        [group] = groups(spec)
        assert [group[key] for key in ("replicas", "minReplicas", "maxReplicas")] == [each.num_nodes] * 3


@pytest.mark.parametrize(
    ("sizes", "cpu", "memory"),
    [({}, 24, "306Gi"), ({"trainer": {"gpus_per_node": 4, "nnodes": 2}}, 12, "170Gi"),
     ({"trainer": {"gpus_per_node": 1}}, 3, "68Gi"), ({"device": "cpu", "trainer": {"gpus_per_node": 4}}, 12, "26Gi")],
)  # fmt: skip
def test_what_is_not_given_follows_the_sizes(sizes, cpu, memory):
    tree = {**OPD, **sizes}
    asked = worker(rayjob("opd", tree, experiment=""))["resources"]["requests"]
    assert (asked["cpu"], asked["memory"]) == (cpu, memory)
    assert [each.node_cpus for each in all_sizes(parse_tree(tree).spec)] == [cpu]


@pytest.mark.parametrize(
    ("given", "requests", "limits"),
    [({"requests": {"cpu": 40}}, {"cpu": 40, "memory": "306Gi"}, {"memory": "306Gi"}),
     ({"requests": {"memory": "300Gi"}}, {"cpu": 24, "memory": "300Gi"}, {"memory": "300Gi"}),
     ({"limits": {"memory": "300Gi", "cpu": 64}}, {"cpu": 64, "memory": "300Gi"}, {"memory": "300Gi", "cpu": 64})],
)  # fmt: skip
def test_what_is_given_stays_and_the_rest_follows_it(given, requests, limits):
    asked = worker(rayjob("opd", OPD, {"cluster": {"worker": given}}, experiment=""))["resources"]
    gpus = {"nvidia.com/gpu": 8}
    assert (asked["requests"], asked["limits"]) == (requests | gpus, limits | gpus)


def test_a_run_on_the_cpu_has_logical_slots_and_asks_for_no_device():
    rdma = {"enabled": True, "resource": "rdma/ib", "count": 8, "ipcLock": True}
    [group] = groups(rayjob("opd", {"cluster": {"rdma": rdma, "gpu": {"type": "A"}}}, experiment="quickstart"))
    container = group["template"]["spec"]["containers"][0]
    assert (group["rayStartParams"]["num-gpus"], group["rayStartParams"]["num-cpus"]) == ("1", "3")
    assert not [key for key in container["resources"]["limits"] if "/" in key]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "nodeSelector" not in group["template"]["spec"]


def test_rdma_devices_are_opt_in_and_the_capability_a_second_step():
    rdma = {"enabled": True, "resource": "rdma/ib", "count": 4}
    devices = worker(rayjob("opd", {"cluster": {"rdma": rdma}}, experiment=NAME))
    assert devices["resources"]["limits"]["rdma/ib"] == devices["resources"]["requests"]["rdma/ib"] == 4
    assert devices["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    locked = rayjob("opd", {"cluster": {"rdma": {**rdma, "ipcLock": True}}}, experiment=NAME)
    assert worker(locked)["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert head(locked)["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize(
    ("serve", "replicas", "asked"),
    [(SERVE["teacher"]["serve"], 3, {"nvidia.com/gpu": 2, "cpu": 6, "memory": "102Gi"}),
     ({}, 1, {"nvidia.com/gpu": 1, "cpu": 3, "memory": "68Gi"})],
)  # fmt: skip
def test_a_teacher_is_served_by_a_group_of_its_own_at_the_address_that_the_trainer_asks(serve, replicas, asked):
    h200 = {"nvidia.com/gpu.product": "NVIDIA-H200"}
    devices = {"gpu": {"type": "NVIDIA-H100"}, "rdma": {"enabled": True, "ipcLock": True}}
    teacher = {"path": "/models/t", "revision": "1", "dtype": "fp16", "serve": serve}
    layers = (OPD, {"teacher": teacher, "cluster": {**devices, "teacher": {"nodeSelector": h200}}})
    trees = objects("opd", *layers, experiment="")
    _, group = groups(one(trees, "RayJob")["spec"])
    pod, [server] = group["template"], group["template"]["spec"]["containers"]
    assert [group[key] for key in ("replicas", "minReplicas", "maxReplicas")] == [replicas] * 3
    assert server["resources"]["requests"] == asked
    assert pod["spec"]["nodeSelector"] == h200, "another type than the workers'"
    assert pod["metadata"]["annotations"]["ray.io/overwrite-container-cmd"] == "true", "KubeRay keeps the command"
    assert not {"lifecycle", "ports"} & server.keys(), "neither Ray nor a save is in it"
    words = "vllm serve /models/t --served-model-name /models/t --host 0.0.0.0 --port 8000 --max-logprobs=-1 --api-server-count 8"
    words += f" --tensor-parallel-size {asked['nvidia.com/gpu']} --revision 1 --dtype float16"
    assert server["command"] + server["args"] == [*words.split(), *serve.get("args", [])]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert server[probe]["httpGet"] == {"path": "/health", "port": 8000}
    service = one(trees, "Service")
    spec = load_text(one(trees, "ConfigMap")["data"]["exp.json"], is_json=True).spec
    assert spec.served_teachers["teacher"].url == (f"http://{service['metadata']['name']}:8000/v1",)
    selected = service["spec"]["selector"].items()
    found = pods("opd", *layers, experiment="")
    assert [role for role in found if selected <= found[role]["metadata"]["labels"].items()] == ["teacher"]


def test_shared_memory_is_a_volume_of_its_own_size_that_holds_the_object_store():
    layer = {"cluster": {"head": {"shmGib": 1.5, "objectStoreGib": 0.5}}}
    group = rayjob("opd", layer)["rayClusterSpec"]["headGroupSpec"]
    assert volumes(group["template"])["shared-mem"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "1536Mi"}
    assert group["rayStartParams"]["object-store-memory"] == str(2**29)


@pytest.mark.parametrize(
    ("given", "expected"),
    [({"token": False}, {"mode": "disabled"}), ({"secret": "s"}, {"mode": "token", "secretName": "s"})],
)
def test_a_token_guards_ray_unless_it_is_switched_off(given, expected):
    assert rayjob("opd", {"cluster": {"auth": given}})["rayClusterSpec"]["authOptions"] == expected


def test_the_submitter_is_our_own_without_credentials_next_to_the_head():
    secrets = {"wandb": {"secret": "w", "key": "k"}, "store": "s"}
    pod = pods("opd", {"cluster": {"secrets": secrets}, "env": {"HTTP_PROXY": "http://p:3128"}})["submitter"]["spec"]
    [container] = pod["containers"]
    assert [*container["command"], *container["args"]] == [
        "python", "-m", "opd.pods.submit", "--", "python", "-m", "opd.pods.start", "/etc/opd/exp.json",
    ]  # fmt: skip
    assert env_of(container).keys() == {"HOME", "NVIDIA_VISIBLE_DEVICES", "NO_PROXY"}, "no proxy reaches the head"
    assert "envFrom" not in container
    [near] = pod["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert near["podAffinityTerm"]["labelSelector"]["matchExpressions"][0]["values"] == ["head"]


def test_drains_and_autoscalers_leave_ray_pods_alone_unless_switched_off():
    keep = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
    for kind, layer, wanted in (("opd", {}, 2), ("opd", SERVE, 5), ("convert", {}, 1)):
        budget = one(objects(kind, layer), "PodDisruptionBudget")["spec"]
        assert budget["minAvailable"] == wanted, "a number: of percentages a RayCluster has no scale"
    off = objects("opd", {"cluster": {"disruption": {"budget": False, "autoscalers": False}}})
    assert "PodDisruptionBudget" not in {tree["kind"] for tree in off}
    for role, pod in pods("opd").items():
        assert (keep.items() <= pod["metadata"].get("annotations", {}).items()) == (role in ("head", "worker"))
    mine = pods("opd", {"cluster": {"worker": {"annotations": {"karpenter.sh/do-not-disrupt": "false"}}}})["worker"]
    assert mine["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "false"
