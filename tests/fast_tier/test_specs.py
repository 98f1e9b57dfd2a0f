"""Every spec of manifests/experiments: installed, admitted under Pod Security `restricted`, bound where it should be."""

from pathlib import Path

import pytest
import yaml
from tests.charts.helm import EXPERIMENTS
from tests.e2e.cluster.kube import KubeError
from tests.fast_tier import nodes
from tests.fast_tier.runs import installed, nodes_by_role, reached

NAMESPACE = "specs"
ALL = {node["metadata"]["name"] for node in nodes.NODES}
UNTAINTED = {node["metadata"]["name"] for node in nodes.NODES if not node["spec"].get("taints")}
GPUS = {node["metadata"]["name"] for node in nodes.NODES if "nvidia.com/gpu" in node["status"]["capacity"]}
H200 = {
    node["metadata"]["name"]
    for node in nodes.NODES
    if node["metadata"]["labels"].get("nvidia.com/gpu.product") == nodes.H200
}
POOL = {"cpu-pool"}
# What belongs to the simulated cluster: the other specs run without it, wherever there is room.
SITE = yaml.safe_load((Path(__file__).parent / "site.yaml").read_text())
ON_SITE = ("opd-qwen3-8b-to-1.7b", "grpo-qwen3-8b")
# Spec -> role -> (how many pods, where each may be). Heads with a selector for the CPU pool are there. Workers with GPUs
# are on a node that has them. Only pods that tolerate a taint are on a tainted node.
PLACES = {
    "quickstart": {"head": (1, UNTAINTED), "worker": (1, UNTAINTED), "submitter": (1, UNTAINTED)},
    "opd-qwen3-8b-to-1.7b": {"head": (1, POOL), "worker": (1, H200), "submitter": (1, UNTAINTED)},
    "grpo-qwen3-8b": {"head": (1, POOL), "worker": (2, H200), "submitter": (1, UNTAINTED)},
    "opd-agent-travel": {"head": (1, UNTAINTED), "worker": (1, GPUS & UNTAINTED), "submitter": (1, UNTAINTED)},
    "opd-agent-quickstart": {"head": (1, UNTAINTED), "worker": (1, UNTAINTED), "submitter": (1, UNTAINTED)},
    "eval-math": {"head": (1, UNTAINTED), "worker": (1, GPUS & UNTAINTED)},
    "passrate": {"head": (1, UNTAINTED), "worker": (1, GPUS & UNTAINTED), "submitter": (1, UNTAINTED)},
    "quickstart-lm": {"head": (1, UNTAINTED), "worker": (1, UNTAINTED), "submitter": (1, UNTAINTED)},
    **{
        name: {"head": (1, UNTAINTED), "worker": (1, GPUS & UNTAINTED), "submitter": (1, UNTAINTED)}
        for name in ("tip-qwen3-8b-to-1.7b", "paced-qwen3-8b-to-1.7b", "smollm2-gsm-teacher")
    },
    "sft": {"head": (1, UNTAINTED), "worker": (1, GPUS & UNTAINTED), "submitter": (1, UNTAINTED)},
    "convert": {"head": (1, UNTAINTED), "submitter": (1, UNTAINTED)},
    "warmup-distil-toy": {"head": (1, UNTAINTED), "worker": (1, UNTAINTED), "submitter": (1, UNTAINTED)},
    "sparse-to-dense-toy": {"head": (1, UNTAINTED), "worker": (1, UNTAINTED), "submitter": (1, UNTAINTED)},
    **{
        name: {"head": (1, UNTAINTED), "worker": (1, GPUS & UNTAINTED), "submitter": (1, UNTAINTED)}
        for name in ("sparse-to-dense-qwen3-8b-to-1.7b", "sparse-to-dense-smollm2")
    },
}


@pytest.fixture(scope="module", autouse=True)
def _namespace(tier):
    tier.namespace(NAMESPACE)


def test_each_spec_has_its_places_here():
    assert set(EXPERIMENTS) <= set(PLACES)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_its_pods_are_admitted_and_bound_where_they_should_be(tier, experiment):
    run = experiment.replace(".", "")
    with installed(tier, NAMESPACE, experiment, *([SITE] if experiment in ON_SITE else []), run=run):
        assert reached(tier, NAMESPACE, run, "Initializing", "Running")["rayClusterName"]
        wanted = PLACES[experiment]

        def bound():
            found = nodes_by_role(tier, NAMESPACE, run)
            is_whole = {role: len(names) for role, names in found.items()} == {
                role: n for role, (n, _) in wanted.items()
            }
            return found if is_whole and all(all(names) for names in found.values()) else None

        found = tier.admin.until(f"the pods of {run} are bound", bound)
        for role, names in found.items():
            assert set(names) <= wanted[role][1], f"{role} on {names}"
        if experiment == "grpo-qwen3-8b":
            assert set(found["worker"]) == H200, "topology spread: one worker a host"


def test_the_namespace_refuses_a_pod_that_is_not_restricted(tier):
    with pytest.raises(KubeError, match='violates PodSecurity "restricted:latest"'):
        tier.user(NAMESPACE).run("run", "plain", "--image=example.com/x", "-n", NAMESPACE)
