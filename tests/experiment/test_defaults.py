"""Defaults that follow from other keys follow them; tests/promises has the scripts' defaults."""

import re

import pytest
from tests.experiment.trees import tree_of

from opd.experiment import load_text, parse_tree
from opd.experiment.base import MAX_NAME_CHARS, NAME_PATTERN, value_at

STUDENT = {"model.path": "hub/Student/"}
CPU = {"device": "cpu"}
TWO = {"a": {"path": "u", "dtype": "bf16"}, "b": {"path": "t"}}
SEVERAL = {"teacher": None, "route.to": {"x": "a"}, "teachers": TWO}
OWN_PROMPT = {"teacher.prompt": "{prompt}"}
TRAIN, TOOLS_TRAIN = ["data/grpo_processed/train.parquet"], ["data/agent_processed/train.parquet"]
AGENT = {"agent.database_dir": "d"}
UNREAD = {"trainer.test_freq": 0, "trainer.val_before_train": False}
RUN = "s3://b/opd/qwen-jsd/checkpoints/global_step_200"


@pytest.mark.parametrize(
    ("kind", "changes", "path", "value"),
    [
        ("grpo", {"recipe": "grpo-native"}, "grpo.kl_loss_coef", 0.001),
        ("eval", {"eval.instruction_variant": "none"}, "data.val.0", "data/eval_processed/none/val_math500.parquet"),
        ("passrate", {}, "data.val", TRAIN),
        ("passrate", AGENT, "data.train", TOOLS_TRAIN),
        ("passrate", AGENT, "reward.function", "environment"),
        ("passrate", {}, "rollout.val", {"num_samples": 8, "temperature": 1.0, "top_p": 1.0, "top_k": -1}),
        ("passrate", {}, "eval.save_generations", False),
        ("opd-agent", {}, "data.val.0", "data/agent_processed/val_travel_en.parquet"),
        ("opd", {"data.train": "a.parquet"}, "data.train", ["a.parquet"]),
        ("opd", {"data.train": "a.parquet", "trainer.test_freq": -1}, "data.val", ["a.parquet"]),  # none is read
        ("sft", {"data.train": "a", "data.val": None, **UNREAD}, "data.val", ["a"]),
        ("opd", CPU, "rollout.name", "cpu"),
        ("opd", CPU, "teacher.dtype", "fp32"),
        ("opd", CPU, "actor.param_offload", False),
        ("opd", CPU | SEVERAL, "teachers.a.dtype", "bf16"),
        ("opd", CPU | SEVERAL, "teachers.b.dtype", "fp32"),
        ("opd", SEVERAL | {"teachers": {"a": {"path": "t", "dtype": "fp32"}}}, "model.attn_implementation", "sdpa"),
        ("opd", {"output.root": "/x/"}, "store.url", "/x/store"),
        ("opd", STUDENT | {"opd.loss_type": "jsd"}, "name", "opd-student-jsd"),
        ("grpo", STUDENT | {"recipe": "grpo-native-no-kl"}, "name", "grpo-student-grpo-native-no-kl"),
        ("eval", STUDENT | {"eval.instruction_variant": "dapo"}, "name", "eval-student-dapo"),
        ("opd", STUDENT | {"name": "mine"}, "name", "mine"),
        ("convert", {"convert.checkpoint": RUN}, "name", "convert-qwen-jsd-global-step-200"),
        ("opd-agent", {}, "opd.max_length", 4096 + 24576),
        ("opd", OWN_PROMPT, "teacher.max_prompt_length", 2048 + 8192),
        ("opd", OWN_PROMPT, "actor.log_prob_max_token_len_per_gpu", 3 * 10240),
        ("opd", {"data.train_batch_size": 16}, "actor.ppo_mini_batch_size", 8),  # 4 rows would not divide over 8 ranks
        ("opd", {"data.train_batch_size": 16, "rollout.num_samples": 2}, "actor.ppo_mini_batch_size", 4),
        ("sft", {"data.train_batch_size": 6, "trainer.gpus_per_node": 1}, "actor.ppo_mini_batch_size", 3),
        ("opd", {"model.lora": {"rank": 4}}, "actor.learning_rate", 1e-5),
    ],
)
def test_a_default_follows_the_keys_that_it_depends_on(kind, changes, path, value, minimal):
    assert value_at(parse_tree(tree_of(minimal, kind, **changes)).spec, path) == value


def test_names_of_two_models_never_collide_however_long_or_foreign_they_are(minimal):
    def name(model):
        spec = parse_tree({**minimal("opd"), "model": {"path": "m", "name": model}}).spec
        assert re.fullmatch(NAME_PATTERN, spec.name)
        assert len(spec.name) <= MAX_NAME_CHARS
        return spec.name

    long = "A-Very-Long-Name-Of-A-Model-That-Somebody-Chose-32B"
    names = [name(model) for model in (long, f"{long}-Instruct", "模型", "模型二", "Qwen3-8B", "Qwen3-4B")]
    assert len(set(names)) == len(names)
    assert name(long) == names[0]


def test_a_model_may_be_given_by_its_path_alone():
    several = {"kind": "opd", "model": "hub/a", "teachers": {"x": "hub/b"}, "route": {"to": {"a": "x"}}}
    spec = parse_tree(several).spec
    assert (spec.model.path, spec.teachers["x"].path) == ("hub/a", "hub/b")
    assert load_text("kind: opd\nteacher: t\n", sets=["model=hub/c"]).spec.model.path == "hub/c"


@pytest.mark.parametrize(
    ("actor", "by_tokens", "updates", "reads"),
    [
        ({}, None, "plan", "plan"),
        ({"use_dynamic_bsz": True}, True, "plan", "plan"),
        ({"use_dynamic_bsz": False}, False, "given", "given"),
        ({"ppo_micro_batch_size_per_gpu": 2}, None, "given", "plan"),
        ({"ppo_max_token_len_per_gpu": 20480}, True, "given", "plan"),
        ({"log_prob_max_token_len_per_gpu": 30720}, True, "plan", "given"),
    ],
)
def test_sizes_of_micro_batches_that_are_given_outrank_the_plan(actor, by_tokens, updates, reads, minimal):
    found = parse_tree({**minimal("opd"), "actor": actor}).spec.actor
    assert (found.cut_updates, found.cut_reads) == (updates, reads)
    assert by_tokens in (None, found.use_dynamic_bsz)
