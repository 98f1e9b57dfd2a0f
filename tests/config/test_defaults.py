"""Defaults of each kind equal the original's tables, and those that follow from other keys follow them."""

import re

import pytest

from opd.config import parse_tree
from opd.config.base import MAX_NAME_CHARS, NAME_PATTERN

# The original's table: kind -> {spec path: value}.
ORIGINAL = {
    "grpo": {
        "data.train_batch_size": 512,
        "actor.ppo_mini_batch_size": 128,
        "actor.ppo_micro_batch_size_per_gpu": 4,
        "actor.log_prob_micro_batch_size_per_gpu": 4,
        "data.max_prompt_length": 2048,
        "data.max_response_length": 8192,
        "rollout.num_samples": 8,
        "rollout.val.temperature": 0.7,
        "grpo.kl_loss_coef": 0.0,
        "grpo.clip_ratio_low": 0.2,
        "grpo.clip_ratio_high": 0.28,
        "grpo.clip_ratio_c": 10.0,
        "actor.use_dynamic_bsz": True,
        "grpo.loss_agg_mode": "token-mean",
        "grpo.entropy_coeff": 0.0,
        "actor.ppo_max_token_len_per_gpu": 2 * (2048 + 8192),
        "actor.log_prob_max_token_len_per_gpu": 3 * (2048 + 8192),
        "data.train_ratio": 0.8,
        "trainer.val_before_train": True,
    },
    "opd": {
        "data.train_batch_size": 256,
        "actor.ppo_mini_batch_size": 64,
        "actor.ppo_micro_batch_size_per_gpu": 4,
        "data.max_prompt_length": 2048,
        "data.max_response_length": 8192,
        "rollout.num_samples": 1,
        "rollout.val.temperature": 0.6,
        "opd.loss_type": "reverse_kl",
        "opd.chunk_size": 256,
        "opd.max_length": 2048 + 8192,
        "opd.reward_beta": None,
        "data.enable_thinking": True,
        "trainer.val_before_train": False,
        "teacher.offload": "auto",
        "actor.gradient_checkpointing": "auto",
        "actor.param_offload": "auto",
        "actor.optimizer_offload": "auto",
    },
    "opd-agent": {
        "data.train_batch_size": 256,
        "actor.ppo_mini_batch_size": 64,
        "actor.ppo_micro_batch_size_per_gpu": 4,
        "data.max_prompt_length": 4096,
        "data.max_response_length": 24576,
        "rollout.num_samples": 1,
        "rollout.val.temperature": 0.6,
        "agent.enable_tools": True,
        "agent.max_assistant_turns": 50,
        "agent.max_tool_response_length": 1024,
        "agent.tool_format": "hermes",
        "rollout.num_agent_workers": 8,
        "data.train_ratio": 0.8,
        "trainer.val_before_train": False,
        "teacher.offload": "auto",
        "actor.gradient_checkpointing": "auto",
        "actor.param_offload": "auto",
        "actor.optimizer_offload": "auto",
    },
    "eval": {
        "data.train_batch_size": 64,
        "actor.ppo_mini_batch_size": 16,
        "actor.ppo_micro_batch_size_per_gpu": 2,
        "actor.log_prob_micro_batch_size_per_gpu": 2,
        "data.max_prompt_length": 2048,
        "data.max_response_length": 16384,
        "rollout.num_samples": 8,
        "rollout.val.temperature": 0.7,
        "eval.instruction_variant": "boxed",
        "reward.function": "math_reward",
    },
}
# What every kind that trains or evaluates has in common, on a GPU.
COMMON = {
    "actor.learning_rate": 1e-6,
    "actor.weight_decay": 0.1,
    "actor.num_warmup_steps": 0,
    "actor.grad_clip": 1.0,
    "actor.use_remove_padding": True,
    "actor.gradient_checkpointing": True,
    "actor.param_offload": True,
    "actor.optimizer_offload": True,
    "rollout.tensor_parallel_size": 1,
    "rollout.gpu_memory_utilization": 0.7,
    "rollout.temperature": 1.0,
    "rollout.top_p": 1.0,
    "rollout.top_k": -1,
    "rollout.free_cache_engine": True,
    "rollout.val.num_samples": 16,
    "rollout.val.top_p": 0.8,
    "rollout.val.top_k": 20,
    "data.truncation": "left",
    "data.filter_overlong": True,
    "trainer.nnodes": 1,
}


def value_at(spec, path):
    for key in path.split("."):
        spec = getattr(spec, key)
    return spec


@pytest.mark.parametrize("kind", ORIGINAL)
def test_defaults_of_a_kind_equal_the_originals(kind, minimal):
    spec = parse_tree(minimal(kind)).spec
    expected = COMMON | ORIGINAL[kind]
    assert {path: value_at(spec, path) for path in expected} == expected


@pytest.mark.parametrize("kind", ["grpo", "opd", "opd-agent"])
def test_training_kinds_run_fifteen_epochs_save_every_20_and_test_every_5(kind, minimal):
    trainer = parse_tree(minimal(kind)).spec.trainer
    assert (trainer.total_epochs, trainer.save_freq, trainer.test_freq) == (15, 20, 5)


@pytest.mark.parametrize(
    ("recipe", "kl", "low", "high", "c", "dynamic"),
    [
        ("grpo", 0.0, 0.2, 0.28, 10.0, True),
        ("grpo-native", 0.001, 0.2, 0.2, 3.0, False),
        ("grpo-native-no-kl", 0.0, 0.2, 0.2, 3.0, False),
    ],
)
def test_a_recipe_chooses_clip_kl_and_batching(recipe, kl, low, high, c, dynamic, minimal):
    spec = parse_tree({**minimal("grpo"), "recipe": recipe}).spec
    found = (spec.grpo.kl_loss_coef, spec.grpo.clip_ratio_low, spec.grpo.clip_ratio_high, spec.grpo.clip_ratio_c)
    assert found == (kl, low, high, c)
    assert spec.actor.use_dynamic_bsz is dynamic
    assert spec.grpo.kl_loss_type == "low_var_kl"


def test_a_key_that_is_given_beats_its_recipe(minimal):
    tree = {**minimal("grpo"), "recipe": "grpo-native", "grpo": {"kl_loss_coef": 0.02}}
    assert parse_tree(tree).spec.grpo.kl_loss_coef == 0.02


@pytest.mark.parametrize(
    ("kind", "extra", "names"),
    [
        ("grpo", {}, ["val_dapo", "val_math500", "val_aime24", "val_aime25"]),
        ("grpo", {"recipe": "grpo-native"}, ["val_dapo", "val_math500", "val_aime24", "val_aime25"]),
        ("grpo", {"recipe": "grpo-native-no-kl"}, ["val_math500", "val_aime24", "val_aime25"]),
        ("opd", {}, ["val_math500", "val_aime24", "val_aime25"]),
    ],
)
def test_validation_sets_of_training_kinds(kind, extra, names, minimal):
    spec = parse_tree({**minimal(kind), **extra, "data": {"dir": "s3://bucket/d/"}}).spec
    assert list(spec.data.val) == [f"s3://bucket/d/grpo_processed/{name}.parquet" for name in names]
    assert list(spec.data.train) == ["s3://bucket/d/grpo_processed/train.parquet"]


def test_eval_reads_the_variants_files(minimal):
    spec = parse_tree({**minimal("eval"), "eval": {"instruction_variant": "none"}}).spec
    assert spec.data.val[0] == "data/eval_processed/none/val_math500.parquet"
    assert len(spec.data.val) == 3


def test_pass_rates_are_those_of_the_training_prompts_sampled_as_in_training(minimal):
    spec = parse_tree(minimal("passrate")).spec
    assert spec.data.val == spec.data.train == ("data/grpo_processed/train.parquet",)
    sampling = spec.rollout.val
    assert (sampling.num_samples, sampling.temperature, sampling.top_p, sampling.top_k) == (8, 1.0, 1.0, -1)
    assert not spec.eval.save_generations
    named = parse_tree({**minimal("passrate"), "data": {"train": ["a.parquet"]}}).spec
    assert named.data.val == named.data.train == ("a.parquet",)
    tools = parse_tree({**minimal("passrate"), "agent": {"database_dir": "d"}}).spec
    assert (tools.data.val, tools.reward.function) == (("data/agent_processed/train.parquet",), "environment")


def test_the_agent_validates_on_both_languages(minimal):
    assert [path[-10:] for path in parse_tree(minimal("opd-agent")).spec.data.val] == ["en.parquet", "zh.parquet"]


def test_token_budgets_and_max_length_follow_the_lengths(minimal):
    tree = {**minimal("opd"), "data": {"max_prompt_length": 100, "max_response_length": 11}}
    spec = parse_tree(tree).spec
    assert spec.opd.max_length == 111
    assert spec.actor.ppo_max_token_len_per_gpu == 222
    assert spec.actor.log_prob_max_token_len_per_gpu == 333


def test_device_cpu_chooses_the_cpu_profile(minimal):
    spec = parse_tree({**minimal("opd"), "device": "cpu"}).spec
    assert (spec.rollout.name, spec.actor.dtype, spec.teacher.dtype) == ("cpu", "fp32", "fp32")
    assert (spec.trainer.gpus_per_node, spec.data.num_workers, spec.rollout.num_agent_workers) == (1, 0, 0)
    assert [spec.actor.param_offload, spec.actor.torch_compile, spec.actor.use_remove_padding] == [False] * 3


def test_the_models_name_is_the_last_part_of_its_path(minimal):
    assert parse_tree({**minimal("opd"), "model": {"path": "hub/Qwen3-8B/"}}).spec.model.name == "Qwen3-8B"


def test_beta_defaults_to_a_half_for_jsd_only(minimal):
    assert parse_tree({**minimal("opd"), "opd": {"loss_type": "jsd"}}).spec.opd.beta == 0.5
    assert parse_tree(minimal("opd")).spec.opd.beta is None


def test_one_file_or_a_list_of_files_may_be_given(minimal):
    spec = parse_tree({**minimal("opd"), "data": {"train": "a.parquet", "val": ["b.parquet", "c.parquet"]}}).spec
    assert (spec.data.train, spec.data.val) == (("a.parquet",), ("b.parquet", "c.parquet"))


def test_the_store_defaults_to_a_folder_of_the_output(minimal):
    assert parse_tree({**minimal("opd"), "output": {"root": "/x/"}}).spec.store.url == "/x/store"


@pytest.mark.parametrize(
    ("kind", "extra", "name"),
    [
        ("opd", {}, "opd-student-reverse-kl"),
        ("opd", {"opd": {"loss_type": "jsd"}}, "opd-student-jsd"),
        ("opd-agent", {}, "opd-agent-student-reverse-kl"),
        ("grpo", {"recipe": "grpo-native-no-kl"}, "grpo-student-grpo-native-no-kl"),
        ("eval", {"eval": {"instruction_variant": "dapo"}}, "eval-student-dapo"),
        ("passrate", {}, "passrate-student-boxed"),
    ],
)
def test_a_run_without_a_name_is_called_by_kind_model_and_algorithm(kind, extra, name, minimal):
    tree = {**minimal(kind), "model": {"path": "hub/Student"}, **extra}
    assert parse_tree(tree).spec.name == name
    assert parse_tree({**tree, "name": "mine"}).spec.name == "mine"


def test_a_conversion_without_a_name_is_called_by_its_run_and_step():
    tree = {"kind": "convert", "convert": {"checkpoint": "s3://b/opd/qwen-jsd/checkpoints/global_step_200"}}
    assert parse_tree(tree).spec.name == "convert-qwen-jsd-global-step-200"


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


def test_the_defaults_of_the_teacher_are_those_of_each_of_several(minimal):
    tree = minimal("opd") | {"device": "cpu"}
    del tree["teacher"]
    spec = parse_tree(
        tree | {"teachers": {"b": {"path": "t"}, "a": {"path": "u", "dtype": "bf16"}}, "route": {"to": {"x": "a"}}}
    ).spec
    assert spec.teacher is None
    assert [(key, t.path, t.dtype, t.offload) for key, t in spec.named_teachers.items()] == [
        ("teachers.a", "u", "bf16", False),
        ("teachers.b", "t", "fp32", False),
    ]


def test_one_of_several_teachers_in_fp32_takes_attention_of_fp32(minimal):
    tree = minimal("opd")
    del tree["teacher"]
    tree |= {"teachers": {"a": {"path": "t"}}, "route": {"to": {"x": "a"}}}
    assert parse_tree(tree).spec.model.attn_implementation == "varlen"
    tree["teachers"]["b"] = {"path": "u", "dtype": "fp32"}
    assert parse_tree(tree).spec.model.attn_implementation == "sdpa"


def test_a_prompt_of_the_teachers_own_may_be_as_long_as_a_row_and_without_one_there_is_no_length(minimal):
    tree = minimal("opd") | {"teacher": {"path": "t", "prompt": "{prompt}"}}
    assert parse_tree(tree).spec.teacher.max_prompt_length == 2048 + 8192
    assert parse_tree(minimal("opd")).spec.teacher.max_prompt_length is None
    del tree["teacher"]
    tree |= {"teachers": {"a": {"path": "t"}, "b": {"path": "u", "prompt": "{prompt}"}}, "route": {"to": {"x": "a"}}}
    assert [t.max_prompt_length for t in parse_tree(tree).spec.named_teachers.values()] == [None, 10240]


def test_the_token_budget_of_a_forward_holds_a_teachers_own_longer_rows(minimal):
    tree = minimal("opd") | {"teacher": {"path": "t", "prompt": "{prompt}"}}
    assert parse_tree(tree).spec.actor.log_prob_max_token_len_per_gpu == 3 * 10240
    tree["teacher"]["max_prompt_length"] = 30000
    assert parse_tree(tree).spec.actor.log_prob_max_token_len_per_gpu == 30000 + 8192
