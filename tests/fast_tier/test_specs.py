"""Every spec of manifests/experiments: installed, admitted under Pod Security `restricted`, bound where it should be."""

from pathlib import Path

import pytest
import yaml
from tests.charts.helm import EXPERIMENTS
from tests.e2e.cluster.kube import KubeError
from tests.fast_tier import nodes
from tests.fast_tier.runs import ROLE_LABEL, installed, nodes_by_role, pods, reached

NAMESPACE = "specs"
UNTAINTED = {node["metadata"]["name"] for node in nodes.NODES if not node["spec"].get("taints")}
GPUS = {node["metadata"]["name"] for node in nodes.NODES if "nvidia.com/gpu" in node["status"]["capacity"]}
H200, POOL = {"gpu-h200-0", "gpu-h200-1"}, {"cpu-pool"}
# What belongs to the simulated cluster: the other specs run without it, wherever there is room.
SITE = yaml.safe_load((Path(__file__).parent / "site.yaml").read_text())
ON_SITE = ("opd-qwen3-8b-to-1.7b", "grpo-qwen3-8b")
SUBMITTER = {"submitter": (1, UNTAINTED)}
TOY = {"head": (1, UNTAINTED), "worker": (1, UNTAINTED), **SUBMITTER}
LARGE = {"head": (1, UNTAINTED), "worker": (1, GPUS & UNTAINTED), **SUBMITTER}
# Spec -> role -> (how many pods, where each may be); `LARGE` for the others. Heads with a selector for the CPU pool are there.
# Workers with GPUs are on a node that has them. Only pods that tolerate a taint are on a tainted node.
PLACES = {
    **dict.fromkeys(
        ("quickstart", "opd-agent-quickstart", "quickstart-lm", "warmup-distil-toy", "sparse-to-dense-toy"), TOY
    ),
    "opd-qwen3-8b-to-1.7b": {"head": (1, POOL), "worker": (1, H200), "teacher": (1, H200), **SUBMITTER},
    "grpo-qwen3-8b": {"head": (1, POOL), "worker": (2, H200), **SUBMITTER},
    "convert": {"head": (1, UNTAINTED), **SUBMITTER},
}


@pytest.fixture(scope="module", autouse=True)
def _namespace(tier):
    tier.namespace(NAMESPACE)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_its_pods_are_admitted_and_bound_where_they_should_be(tier, experiment):
    run, layers = experiment.replace(".", ""), [SITE] if experiment in ON_SITE else []
    layers += [{"teacher": {"serve": {"gpus": 4}}}] if "teacher" in PLACES.get(experiment, LARGE) else []
    with installed(tier, NAMESPACE, experiment, *layers, run=run):
        assert reached(tier, NAMESPACE, run, "Initializing", "Running")["rayClusterName"]
        wanted = PLACES.get(experiment, LARGE)

        def bound():
            found = nodes_by_role(tier, NAMESPACE, run)
            is_whole = {role: len(found[role]) for role in found} == {role: wanted[role][0] for role in wanted}
            return found if is_whole and all(all(names) for names in found.values()) else None

        found = tier.admin.until(f"the pods of {run} are bound", bound)
        for role, names in found.items():
            assert set(names) <= wanted[role][1], f"{role} on {names}"
        if "teacher" in found:
            [server] = [pod for pod in pods(tier, NAMESPACE, run) if pod["metadata"]["labels"][ROLE_LABEL] == "teacher"]
            assert server["spec"]["containers"][0]["command"][:2] == ["vllm", "serve"], "KubeRay leaves it alone"
            assert server["spec"]["containers"][0]["readinessProbe"]["httpGet"]["path"] == "/health"
            addresses = tier.admin.get("endpoints", f"{run}-teacher", namespace=NAMESPACE)["subsets"][0]["addresses"]
            assert [address["targetRef"]["name"] for address in addresses] == [server["metadata"]["name"]]
        if experiment == "grpo-qwen3-8b":
            assert set(found["worker"]) == H200, "topology spread: one worker a host"


def test_suspending_a_run_with_deletion_rules_is_refused_and_the_run_goes_on(tier):
    with installed(tier, NAMESPACE, "quickstart"):
        before = reached(tier, NAMESPACE, "quickstart", "Running")
        words = ("patch", "rayjob", "quickstart", "-n", NAMESPACE, "--type=merge", "-p", '{"spec": {"suspend": true}}')
        with pytest.raises(KubeError, match="a RayJob with deletion rules cannot be suspended"):
            tier.user(NAMESPACE).run(*words)
        assert reached(tier, NAMESPACE, "quickstart", "Running")["rayClusterName"] == before["rayClusterName"]
