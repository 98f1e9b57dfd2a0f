"""Defaults that follow from other keys follow them; tests/promises has those of the scripts."""

import json
import re

import pytest
from tests.config.trees import tree_of

from opd.config import load_text, parse_tree
from opd.config.base import MAX_NAME_CHARS, NAME_PATTERN


def test_a_key_that_is_given_beats_its_recipe(minimal):
    tree = {**minimal("grpo"), "recipe": "grpo-native", "grpo": {"kl_loss_coef": 0.02}}
    assert parse_tree(tree).spec.grpo.kl_loss_coef == 0.02


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


def test_device_cpu_chooses_the_cpu_profile(minimal):
    spec = parse_tree({**minimal("opd"), "device": "cpu"}).spec
    assert (spec.rollout.name, spec.actor.dtype, spec.teacher.dtype) == ("cpu", "fp32", "fp32")
    assert (spec.trainer.gpus_per_node, spec.data.num_workers, spec.rollout.num_agent_workers) == (1, 0, 0)
    assert [spec.actor.param_offload, spec.actor.torch_compile, spec.actor.use_remove_padding] == [False] * 3


def test_beta_defaults_to_a_half_for_jsd_only(minimal):
    assert parse_tree({**minimal("opd"), "opd": {"loss_type": "jsd"}}).spec.opd.beta == 0.5
    assert parse_tree(minimal("opd")).spec.opd.beta is None


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


@pytest.mark.parametrize(
    ("kind", "changes", "mini"),
    [
        ("opd", {}, 64),
        ("opd", {"data.train_batch_size": 64}, 16),
        ("opd", {"data.train_batch_size": 16}, 8),  # 4 rows would not divide over 8 ranks
        ("opd", {"data.train_batch_size": 16, "rollout.num_samples": 2}, 4),
        ("opd", {"data.train_batch_size": 8}, 8),
        ("sft", {"data.train_batch_size": 6, "trainer.gpus_per_node": 1}, 3),
        ("opd", {"actor.ppo_mini_batch_size": 32}, 32),
    ],
)
def test_the_mini_batch_is_a_quarter_of_the_batch_that_the_ranks_share(kind, changes, mini, minimal):
    assert parse_tree(tree_of(minimal, kind, **changes)).spec.actor.ppo_mini_batch_size == mini


def test_adapters_learn_ten_times_as_fast(minimal):
    rates = [
        parse_tree(tree_of(minimal, "opd", model__lora=lora)).spec.actor.learning_rate for lora in (None, {"rank": 4})
    ]
    assert rates == [1e-6, 1e-5]


@pytest.mark.parametrize(("context", "length"), [(4096, 2048), (40960, 8192), (1024, 8192), (None, 8192)])
def test_responses_are_no_longer_than_a_local_models_context(context, length, minimal, tmp_path):
    config = {} if context is None else {"max_position_embeddings": context}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert parse_tree(tree_of(minimal, "opd", model__path=str(tmp_path))).spec.data.max_response_length == length


def test_a_model_may_be_given_by_its_path_alone(minimal):
    spec = parse_tree({"kind": "opd", "model": "hub/a", "teacher": "hub/b"}).spec
    assert (spec.model.path, spec.teacher.path) == ("hub/a", "hub/b")
    several = {"kind": "opd", "model": "hub/a", "teachers": {"x": "hub/b"}, "route": {"all": "x"}}
    assert parse_tree(several).spec.teachers["x"].path == "hub/b"
    assert load_text("kind: opd\nteacher: t\n", sets=["model=hub/c"]).spec.model.path == "hub/c"


@pytest.mark.parametrize("kind", ["opd", "grpo", "sft"])
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
def test_sizes_of_micro_batches_that_are_given_outrank_the_plan(kind, actor, by_tokens, updates, reads, minimal):
    found = parse_tree({**minimal(kind), "actor": actor}).spec.actor
    assert (found.cut_updates, found.cut_reads) == (updates, reads)
    assert by_tokens in (None, found.use_dynamic_bsz)
