"""Features that cannot work, with their reason in any spelling, and secrets, which no error shows."""

import pytest

from opd.experiment import SpecError, load_text, parse_tree
from opd.experiment.tree import set_path

SECRET = "s3cr3t-value-123"


def error_of(tree):
    with pytest.raises(SpecError) as caught:
        parse_tree(tree)
    return caught.value


@pytest.mark.parametrize(
    ("path", "value", "word"),
    [("model.lora_rank", 8, "LoRA"), ("lora", {"rank": 8}, "LoRA"), 
     ("actor.strategy", "megatron", "Megatron"), ("actor.megatron", {"x": 1}, "Megatron")],
)  # fmt: skip
def test_a_key_for_an_unsupported_feature_says_why(path, value, word, minimal):
    tree = minimal("opd")
    set_path(tree, path, value)
    (problem,) = error_of(tree).problems
    assert word in problem.rule


_ACTOR, _MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.model"


@pytest.mark.parametrize(
    ("override", "word"),
    [
        (f"{_MODEL}.lora_rank=16", "LoRA"),
        (f"{_MODEL}.target_parameters=[x]", "LoRA"),
        ("reward.reward_model.enable=True", "reward.function"),
        (f"{_ACTOR}.strategy=megatron", "Megatron"),
        (f"+{_ACTOR}.megatron.tensor_model_parallel_size=2", "Megatron"),
        ("actor_rollout_ref.ref.ulysses_sequence_parallel_size=1", "share sequences alike"),
        ("distillation.enabled=True", "distillation"),
        (f"{_ACTOR}.checkpoint.save_contents=['model','extra']", "resume"),
        (f"{_ACTOR}.checkpoint={{save_contents:[model]}}", "map"),
        ("data={train_batch_size:3}", "map"),
        ("", "key=value"),
        ("opd.chunk_sise=3", "no such key"),
        ("~opd.beta", "no such key"),
    ],
)
def test_a_raw_override_that_cannot_work_is_refused(override, word, minimal):
    (problem,) = error_of({**minimal("opd"), "overrides": [override]}).problems
    assert word in problem.rule
    with pytest.raises(SpecError, match=word):
        load_text("kind: opd\nmodel: {path: m}\nteacher: {path: t}\n", overrides=[override])


@pytest.mark.parametrize(
    "override",
    ["actor_rollout_ref.model.lora_rank=0", "model_engine=dp",
     "actor_rollout_ref.rollout.mode=async", "actor_rollout_ref.actor.strategy=fsdp2",
     "actor_rollout_ref.actor.checkpoint.save_contents=['model','optimizer','extra','hf_model']"],
)  # fmt: skip
def test_a_raw_override_that_changes_nothing_forbidden_passes(override, minimal):
    assert parse_tree({**minimal("opd"), "overrides": [override]}).spec.overrides == (override,)


def test_a_raw_override_of_a_key_the_spec_has_becomes_that_key(minimal):
    overrides = [
        "data.train_batch_size=128",
        "actor_rollout_ref.rollout.n=4",
        "data.val_files=[a.parquet,b.parquet]",
        "trainer.project_name='my project'",
        "actor_rollout_ref.actor.optim.lr=3e-6",
        "algorithm.gamma=0.5",
    ]
    spec = parse_tree({**minimal("grpo"), "overrides": overrides}).spec
    assert spec.data.train_batch_size == 128
    assert spec.rollout.num_samples == 4
    assert spec.data.val == ("a.parquet", "b.parquet")
    assert spec.trainer.project == "my project"
    assert spec.actor.learning_rate == 3e-6
    assert spec.overrides == ("algorithm.gamma=0.5",)


def test_a_later_raw_override_replaces_an_earlier_one(minimal):
    tree = {**minimal("opd"), "overrides": ["algorithm.gamma=0.5", "algorithm.lam=1.0", "algorithm.gamma=0.9"]}
    assert parse_tree(tree).spec.overrides == ("algorithm.lam=1.0", "algorithm.gamma=0.9")


@pytest.mark.parametrize(
    "tree",
    [
        {"env": {"HF_TOKEN": SECRET}},
        {"cluster": {"extraEnv": [{"name": "HF_TOKEN", "value": SECRET}]}},
        {"store": {"url": f"s3://user:{SECRET}@bucket/x"}},
        {"model": {"path": f"https://me:{SECRET}@hub/model"}},
        {"overrides": [f"+ray_kwargs.ray_init.runtime_env.env_vars={{HF_TOKEN:{SECRET}}}"]},
        {"overrides": [f"trainer.default_hdfs_dir=s3://me:{SECRET}@bucket"]},
        {"rollout": {"engine_kwargs": {"MY_TOKEN": SECRET, "bad key": 1}}},
    ],
)
def test_a_literal_secret_is_refused_and_not_shown(tree, minimal):
    error = error_of({**minimal("opd"), **tree})
    assert any("secret" in problem.rule for problem in error.problems)
    assert SECRET not in str(error)
    assert SECRET not in repr(error.problems)


def test_references_to_secrets_and_innocent_keys_pass(minimal):
    cluster = {
        "envFrom": [{"secretRef": {"name": "hub"}}],
        "extraEnv": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "HF_TOKEN"}}}],
    }
    overrides = ["data.prompt_key=prompt", "data.reward_fn_key=data_source", "trainer.note=\u2028\u202e\x1b[31m"]
    parse_tree({**minimal("opd"), "cluster": cluster, "overrides": overrides, "env": {"NCCL_DEBUG": "INFO"}})


def test_overrides_that_are_no_list_are_refused_also_beside_the_command_lines(minimal):
    with pytest.raises(SpecError) as caught:
        load_text("kind: opd\nmodel: {path: m}\nteacher: {path: t}\noverrides: a.b=1\n", overrides=["c.d=2"])
    assert [problem.path for problem in caught.value.problems] == ["overrides"]


@pytest.mark.parametrize(
    ("kind", "override", "words"),
    [
        ("opd", "actor_rollout_ref.actor.entropy_coeff=0.01", "it has no grpo.entropy_coeff"),
        ("opd", "actor_rollout_ref.actor.use_kl_loss=True", "grpo.kl_loss_coef"),
        ("eval", "trainer.total_epochs=3", "it has no trainer.total_epochs"),
        ("grpo", "critic.optim.lr=1e-5", "no critic"),
    ],
)
def test_a_key_of_verl_that_the_kind_does_not_read_is_refused(kind, override, words, minimal):
    (problem,) = error_of({**minimal(kind), "overrides": [override]}).problems
    assert words in problem.rule
    key = override.partition("=")[0]
    if kind != "grpo":
        parse_tree({**minimal(kind), "overrides": [f"{key}=0"]})
