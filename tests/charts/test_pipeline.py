"""A pipeline's chart: one Ray cluster that holds each of its stages."""

import pytest
from tests.charts.helm import env_of, head, objects, one, rayjob, refusal, worker

from opd.experiment import parse_tree
from opd.experiment.pipeline import all_sizes

SFT = {"kind": "sft", "model": {"path": "m"}, "data": {"train": "t.parquet", "val": "v.parquet"}, "trainer": {"nnodes": 2, "gpus_per_node": 2}}  # fmt: skip
OPD = {"kind": "opd", "model": {"path": "m"}, "teacher": {"path": "t"}, "trainer": {"gpus_per_node": 8}}
ON_CPU = {**OPD, "device": "cpu", "trainer": {"gpus_per_node": 4}}
EVAL = {"kind": "eval", "model": {"path": "m"}, "trainer": {"gpus_per_node": 1}}
CONVERT = {"kind": "convert", "convert": {"checkpoint": "c"}}


def pipeline(**stages):
    return {"kind": "pipeline", "name": "p", "stages": stages}


@pytest.mark.parametrize(
    "tree",
    [pipeline(wide=SFT, deep=OPD), pipeline(first=CONVERT, then=EVAL), pipeline(cpu=ON_CPU, gpu=EVAL),
     pipeline(off={**SFT, "trainer": {"nnodes": 4, "gpus_per_node": 8}, "skip": True}, on=ON_CPU)],
    ids=lambda tree: "-".join(tree["stages"]),
)  # fmt: skip
def test_its_pods_hold_the_most_that_one_of_its_stages_needs(tree):
    sizes = all_sizes(parse_tree(tree).spec)
    num_nodes, gpus = max(each.num_nodes for each in sizes), max(each.gpus_per_node for each in sizes)
    on_gpu = any(each.device == "cuda" for each in sizes)
    spec = rayjob("pipeline", tree, experiment="")
    [group] = spec["rayClusterSpec"]["workerGroupSpecs"]
    asked = worker(spec)["resources"]
    assert group["replicas"] == num_nodes
    assert group["rayStartParams"]["num-gpus"] == str(gpus)
    assert asked["limits"].get("nvidia.com/gpu") == (gpus if on_gpu else None)
    assert asked["requests"]["cpu"] >= max(each.node_cpus for each in sizes)
    converts = any(stage["kind"] == "convert" for stage in tree["stages"].values())
    assert head(spec)["resources"]["requests"]["cpu"] == (4 if converts else 2)
    budget = one(objects("pipeline", tree, experiment=""), "PodDisruptionBudget")["spec"]
    assert budget["minAvailable"] == 1 + num_nodes


def test_a_conversion_that_a_reference_asks_for_has_its_room_on_the_head():
    following = {**OPD, "teacher": {"path": "${stages.warmup.checkpoint}"}}
    for stage, memory in ((following, "64Gi"), (OPD, "16Gi")):
        spec = rayjob("pipeline", pipeline(warmup=SFT, distil=stage), experiment="")
        assert head(spec)["resources"]["requests"]["memory"] == memory


def test_each_stage_has_its_own_run_at_weights_and_biases():
    tree = pipeline(a={**OPD, "trainer": {"gpus_per_node": 1, "loggers": ["wandb"]}})
    assert "WANDB_RUN_ID" not in env_of(head(rayjob("pipeline", tree, experiment="")))


@pytest.mark.parametrize("change", [{"actor": {"learning_rat": 1}}, {"kind": "dpo"}, {"seed": "1"}], ids=str)
def test_a_stage_has_the_keys_of_its_kind(change):
    assert "/stages/a" in refusal("pipeline", pipeline(a={**OPD, **change}), experiment="")
