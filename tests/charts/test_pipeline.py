"""A pipeline's chart: one Ray cluster that holds each of its stages, whose keys it refuses in the words of the tool."""

import copy
import math

import pytest
from tests.charts.helm import env_of, head, objects, one, rayjob, refusal, worker

from opd.config import SpecError, load_text, parse_tree
from opd.config.needs import needs
from opd.config.pipeline import stages_of

SFT = {"kind": "sft", "model": {"path": "m"}, "data": {"train": "t.parquet", "val": "v.parquet"}}
OPD = {"kind": "opd", "model": {"path": "m"}, "teacher": {"path": "t"}, "actor": {"use_dynamic_bsz": True}}
AGENT = {**OPD, "kind": "opd-agent", "agent": {"database_dir": "/db"}}
EVAL = {"kind": "eval", "model": {"path": "m"}}
CONVERT = {"kind": "convert", "convert": {"checkpoint": "c"}}
DATABASE = {"cluster": {"toolDatabase": {"claim": "db"}}}


def pipeline(**stages):
    return {"kind": "pipeline", "name": "p", "stages": stages}


def sized(base, **sections):
    return {**copy.deepcopy(base), **sections}


MIXED = pipeline(
    wide=sized(SFT, trainer={"nnodes": 2, "gpus_per_node": 2}),
    deep=sized(OPD, trainer={"gpus_per_node": 8}, reward={"num_workers": 0}, rollout={"num_agent_workers": 0}),
    busy=sized(OPD, trainer={"gpus_per_node": 1}, reward={"num_workers": 300}),
)
CASES = [
    MIXED,
    pipeline(only=OPD),
    pipeline(first=CONVERT, then=EVAL),
    pipeline(small=sized(OPD, device="cpu"), large=sized(OPD, device="cpu", trainer={"gpus_per_node": 4})),
    pipeline(cpu=sized(OPD, device="cpu", trainer={"gpus_per_node": 4}), gpu=sized(OPD, trainer={"gpus_per_node": 1})),
    pipeline(many=sized(OPD, overrides=["transfer_queue.backend.SimpleStorage.num_data_storage_units=40"]), few=EVAL),
    pipeline(
        off={**sized(SFT, trainer={"nnodes": 4}), "skip": True},
        on={**sized(OPD, trainer={"gpus_per_node": 2}), "skip": False},
    ),
]
WITH_MODELS = {
    "a student": {"model": {"path": "${stages.warmup.checkpoint}"}},
    "a teacher": {"teacher": {"path": "${stages.warmup.checkpoint}"}},
    "its model": {"model": {"path": "${stages.warmup.model}"}},
    "one of several teachers": {
        "teacher": None,
        "teachers": {"a": {"path": "t"}, "b": {"path": "${stages.warmup.checkpoint}"}},
        "route": {"to": {"x": "a", "y": "b"}},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("tree", CASES, ids=lambda tree: "-".join(tree["stages"]))
def test_its_pods_hold_the_most_that_one_of_its_stages_needs_of_each_resource(tree):
    needed = needs(parse_tree(tree).spec)
    spec = rayjob("pipeline", tree, experiment="")
    [group] = spec["rayClusterSpec"]["workerGroupSpecs"]
    resources = worker(spec)["resources"]
    assert group["replicas"] == needed.num_nodes
    assert group["rayStartParams"]["num-gpus"] == str(needed.worker.gpus)
    assert resources["limits"].get("nvidia.com/gpu") == (needed.worker.gpus if needed.worker.on_gpu else None)
    assert resources["requests"]["cpu"] == needed.worker.cpus
    assert resources["requests"]["memory"] == f"{math.ceil(needed.worker.memory_gib + 16)}Gi"
    assert head(spec)["resources"]["requests"] == {
        "cpu": needed.head.cpus,
        "memory": f"{math.ceil(needed.head.memory_gib + 2)}Gi",
    }
    assert one(objects("pipeline", tree, experiment=""), "PodDisruptionBudget")["spec"]["minAvailable"] == 1 + needed.num_nodes  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("change", WITH_MODELS.values(), ids=WITH_MODELS)
def test_a_conversion_that_a_reference_asks_for_has_its_room_on_the_head(change):
    stage = {key: value for key, value in sized(OPD, **change).items() if value is not None}
    tree = pipeline(warmup=SFT, distil=stage)
    found = stages_of(parse_tree(tree).spec)
    assert [stage.name for stage in found] == ["warmup", "warmup-model", "distil"]
    assert head(rayjob("pipeline", tree, experiment=""))["resources"]["requests"]["memory"] == "64Gi"
    without = pipeline(warmup=SFT, distil=OPD)
    assert head(rayjob("pipeline", without, experiment=""))["resources"]["requests"]["memory"] == "16Gi"


def test_files_of_an_evaluation_are_no_model():
    answers = {**SFT, "sft": {"teacher_answers": ["${stages.ask.generations}"]}}
    spec = rayjob("pipeline", pipeline(ask=EVAL, learn=answers), experiment="")
    assert head(spec)["resources"]["requests"]["memory"] == "16Gi"


def test_a_pipeline_of_conversions_has_no_workers():
    assert "workerGroupSpecs" not in rayjob("pipeline", pipeline(a=CONVERT), experiment="")["rayClusterSpec"]


def test_each_stage_has_its_own_run_at_weights_and_biases():
    tree = pipeline(a=sized(OPD, trainer={"loggers": ["wandb"]}))
    assert "WANDB_RUN_ID" not in env_of(head(rayjob("pipeline", tree, experiment="")))


def test_the_tools_data_are_where_each_stage_reads_them():
    tree = pipeline(a=AGENT, b=sized(AGENT, agent={"database_dir": "/other"}), c=AGENT, d=OPD)
    mounts = worker(rayjob("pipeline", tree, DATABASE, experiment=""))["volumeMounts"]
    assert [item["mountPath"] for item in mounts if item["name"] == "tool-database"] == ["/db", "/other"]


def test_stages_reach_the_trainer_as_they_were_written():
    tree = pipeline(b=OPD, a=sized(SFT, actor={"learning_rate": 1e-6}))
    sent = one(objects("pipeline", tree, experiment=""), "ConfigMap")["data"]["exp.json"]
    assert load_text(sent, is_json=True).spec.stages == tree["stages"]


# Under `stages.a` of an otherwise valid file; the schema's words or the tables', and the tool refuses each too.
REFUSED = {
    "additional properties 'sead' not allowed": {"sead": 1},
    "additional properties 'learning_rat' not allowed": {"actor": {"learning_rat": 1}},
    "additional properties 'name' not allowed": {"name": "x"},
    "additional properties 'store' not allowed": {"store": {"url": "s3://b/x"}},
    "value must be one of 'grpo', 'opd'": {"kind": "dpo"},
    "at '/stages/a/kind': value must be one of": {"kind": "pipeline"},
    "got string, want integer": {"seed": "1"},
    "got null, want object": {"trainer": None},
    "missing property 'model'": {"model": {}, "teacher": {}},
    "additional properties 'convert' not allowed": {"convert": {"checkpoint": "c"}},
}


@pytest.mark.parametrize(("words", "change"), REFUSED.items(), ids=REFUSED)
def test_a_stage_has_the_keys_of_its_kind(words, change):
    stage = {key: value for key, value in sized(OPD, **change).items() if value != {}}
    tree = pipeline(a=stage)
    assert words in refusal("pipeline", tree, experiment="")
    with pytest.raises(SpecError):
        stages_of(parse_tree(tree).spec)


BROKEN = [
    {"actor": {"ppo_mini_batch_size": 100}, "data": {"train_batch_size": 256}},
    {"opd": {"loss_type": "reverse_kl", "beta": 0.5}},
    {"trainer": {"gpus_per_node": 3}},
    {"device": "cpu", "rollout": {"name": "vllm"}},
    {"overrides": ["actor_rollout_ref.model.lora_rank=8"]},
    {"data": {"truncation": "left", "filter_overlong": False}},
]
