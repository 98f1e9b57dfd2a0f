"""`python -m opd.main_opd` with what people who know verl type: no key of ours is needed, and one place holds the defaults."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import hydra
import pytest
from omegaconf import DictConfig, OmegaConf

from opd.config import SpecError
from opd.config.raw import parse_raw
from opd.config.run_config import KEY, RunConfig
from opd.config.tree import get_path
from opd.config.verl import compute_overrides
from opd.launch import facts
from opd.main_opd import spec_of
from opd.trainer.entry import CONFIG_NAME, config_dir

VERL = Path(importlib.util.find_spec("verl").submodule_search_locations[0])  # type: ignore[union-attr, index]
MODELS = ["actor_rollout_ref.model.path=/models/student", "+actor_rollout_ref.ref.model.path=/models/teacher"]
FILES = ["data.train_files=/data/train.parquet", "data.val_files=/data/test.parquet"]
# What the original's own launch script sets; its agent adds the last block.
ORIGINAL_SCRIPT = [
    *MODELS,
    "algorithm.adv_estimator=grpo",
    "algorithm.use_kl_in_reward=False",
    "data.train_files=['/data/grpo_processed/train.parquet']",
    "data.val_files=['/data/grpo_processed/val_math500.parquet','/data/grpo_processed/val_aime24.parquet']",
    "data.train_batch_size=256",
    "data.max_prompt_length=2048",
    "data.max_response_length=8192",
    "data.filter_overlong_prompts=True",
    "data.truncation=left",
    "data.return_raw_chat=True",
    "+data.apply_chat_template_kwargs.enable_thinking=True",
    "actor_rollout_ref.model.use_remove_padding=True",
    "actor_rollout_ref.model.enable_gradient_checkpointing=True",
    "actor_rollout_ref.actor.optim.lr=1e-6",
    "actor_rollout_ref.actor.optim.lr_warmup_steps=0",
    "actor_rollout_ref.actor.optim.weight_decay=0.1",
    "actor_rollout_ref.actor.grad_clip=1.0",
    "actor_rollout_ref.actor.ppo_mini_batch_size=64",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.actor.fsdp_config.param_offload=True",
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload=True",
    "actor_rollout_ref.ref.fsdp_config.param_offload=True",
    "actor_rollout_ref.hybrid_engine=True",
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.mode=async",
    "actor_rollout_ref.rollout.n=1",
    "actor_rollout_ref.rollout.temperature=1.0",
    "actor_rollout_ref.rollout.top_p=1.0",
    "actor_rollout_ref.rollout.top_k=-1",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.7",
    "actor_rollout_ref.rollout.free_cache_engine=True",
    "actor_rollout_ref.rollout.val_kwargs.do_sample=True",
    "actor_rollout_ref.rollout.val_kwargs.n=16",
    "actor_rollout_ref.rollout.val_kwargs.temperature=0.6",
    "actor_rollout_ref.rollout.val_kwargs.top_p=0.8",
    "actor_rollout_ref.rollout.val_kwargs.top_k=20",
    "opd.loss_type=reverse_kl",
    "opd.chunk_size=256",
    "opd.max_length=16384",
    "custom_reward_function.path=/src/rewards/math_reward.py",
    "custom_reward_function.name=compute_score",
    "trainer.logger=[console]",
    "trainer.project_name=opd",
    "trainer.experiment_name=opd_thinking",
    "trainer.default_local_dir=/outputs/opd_thinking",
    "trainer.n_gpus_per_node=8",
    "trainer.nnodes=1",
    "trainer.val_before_train=False",
    "trainer.save_freq=20",
    "trainer.test_freq=5",
    "trainer.total_epochs=15",
]
DOZENS = {
    "the teacher alone": MODELS,
    "the original's script": ORIGINAL_SCRIPT,
    "a laptop": [*MODELS, *FILES, "trainer.device=cpu"],
    "dynamic batches": [*MODELS, *FILES, "actor_rollout_ref.actor.use_dynamic_bsz=True", "data.train_batch_size=512"],
    "jsd by reward": [*MODELS, "opd.loss_type=jsd", "opd.reward_beta=0.5", "actor_rollout_ref.rollout.n=8"],
    "two nodes": [*MODELS, "trainer.nnodes=2", "trainer.n_gpus_per_node=8", "data.train_batch_size=1024"],
    "padded rows": [*MODELS, "actor_rollout_ref.model.use_remove_padding=False"],
    "an attention kernel": [*MODELS, "actor_rollout_ref.model.override_config.attn_implementation=sdpa"],
    "shared sequences": [*MODELS, "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2"],
    "greedy validation": [*MODELS, "actor_rollout_ref.rollout.val_kwargs.temperature=0"],
    "grpo": [MODELS[0], *FILES, "run.kind=grpo", "actor_rollout_ref.rollout.n=8"],
}


OURS = {"actor_rollout_ref.ref.model.path": "teacher.path", "run.kind": "kind"}


def composed(given: list[str], **env: str) -> DictConfig:
    # The folder of verl's configs instead of its package: the same files without the seconds of importing verl.
    search = f"hydra.searchpath=[file://{VERL}/trainer/config]"
    with hydra.initialize_config_dir(config_dir(), version_base=None):
        spec = spec_of(given, env)
        run = facts(spec)
        config = hydra.compose(CONFIG_NAME, overrides=[*compute_overrides(spec, run=run), search])
    config[KEY] = RunConfig(spec=spec, run=run).text()
    return config


@pytest.fixture(scope="module")
def configs() -> dict[str, DictConfig]:
    return {name: composed(given) for name, given in DOZENS.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", DOZENS)
def test_every_value_that_was_typed_arrives(configs, name):
    tree = configs[name]
    OmegaConf.to_container(tree, resolve=True)  # no interpolation is left open
    for text in DOZENS[name]:
        raw = parse_raw(text)
        typed = hydra.core.override_parser.overrides_parser.OverridesParser.create().parse_override(text).value()
        ours = OURS.get(raw.key, raw.key if raw.key.startswith("opd.") else "")
        value = get_path(RunConfig.of(tree).tree()["spec"], ours) if ours else OmegaConf.select(tree, raw.key)
        listed = list(value) if OmegaConf.is_list(value) else value
        assert listed in (typed, [typed]), text


def test_a_laptop_needs_the_device_and_nothing_else(configs):
    role, init = configs["a laptop"].actor_rollout_ref, configs["a laptop"].ray_kwargs.ray_init
    assert role.model.override_config.attn_implementation == "sdpa"
    assert role.actor.fsdp_config.mixed_precision.param_dtype == "fp32"
    assert not role.model.use_remove_padding
    assert not role.actor.use_torch_compile
    assert (role.rollout.name, role.rollout.agent.num_workers) == ("cpu", 0)
    assert init.num_gpus == configs["a laptop"].trainer.n_gpus_per_node, "logical slots, one a rank"


@pytest.mark.slow
def test_verl_itself_accepts_every_command_line(configs):
    from verl.experimental.reward_loop import migrate_legacy_reward_impl
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    for name, tree in configs.items():
        config = migrate_legacy_reward_impl(tree.copy())
        if (teacher := OmegaConf.select(config, "actor_rollout_ref.ref.model")) is not None:
            pytest.fail(f"{name}: {teacher} is no key of verl's ref")
        validate_config(
            config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config)
        )
        actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
        actor.validate(config.trainer.n_gpus_per_node, config.data.train_batch_size)
        omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
        scorer = config.reward.custom_reward_function
        assert scorer.path
        assert scorer.name
    assert scorer.path == "pkg://opd.rewards.entry"


def test_the_yaml_says_no_other_default_than_a_spec_has(configs):
    yaml = OmegaConf.to_container(OmegaConf.load(Path(config_dir()) / f"{CONFIG_NAME}.yaml"))
    by_device = {"actor_rollout_ref.model.override_config.attn_implementation"}

    def leaves(node, prefix=""):
        for key, value in node.items():
            if isinstance(value, dict):
                yield from leaves(value, f"{prefix}{key}.")
            else:
                yield f"{prefix}{key}", value

    spec = spec_of(MODELS, {})
    typed = {parse_raw(line).key for line in compute_overrides(spec, run=facts(spec))}
    said_twice = {path: value for path, value in leaves(yaml) if path in typed and path not in by_device}
    computed = {path: OmegaConf.select(configs["the teacher alone"], path) for path in said_twice}
    assert computed == said_twice != {}


@pytest.mark.parametrize(
    ("given", "name", "folder"),
    [
        (
            ["trainer.experiment_name=opd_thinking", "trainer.default_local_dir=/outputs/a"],
            "opd-thinking",
            "/outputs/a",
        ),
        (["trainer.experiment_name='7 B'"], "run-7-b", "outputs"),
    ],
)
def test_a_run_has_its_directory_by_verls_name_below_verls_folder(given, name, folder):
    spec = spec_of([*MODELS, *given], {})
    assert (spec.name, spec.output.root, spec.store.url) == (name, folder, folder)
    assert facts(spec).run_dir == f"{folder}/{name}"


def test_the_teacher_may_come_from_the_environment_and_is_overridden_by_the_command_line():
    assert spec_of(MODELS[:1], {"TEACHER_MODEL_PATH": "/env"}).teacher.path == "/env"
    assert spec_of(MODELS, {"TEACHER_MODEL_PATH": "/env"}).teacher.path == "/models/teacher"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (MODELS[:1], ["opd.teacher.path\n", "TEACHER_MODEL_PATH"]),
        ([*MODELS, "data.train_batch_size=10"], ["actor_rollout_ref.actor.ppo_mini_batch_size\n", "must divide"]),
        ([*MODELS, "actor_rollout_ref.rollout.name=sglang"], ["actor_rollout_ref.rollout.name", '"sglang"', "'vllm'"]),
        ([*MODELS, "actor_rollout_ref.actor.strategy=megatron"], ["only the fsdp2 engine is supported"]),
        ([*MODELS, "run.kind=ppo"], ["ppo"]),
    ],
    ids=["no teacher", "batches", "rollout server", "engine", "kind"],
)
def test_what_cannot_work_is_refused_in_verls_own_keys(given, words):
    with pytest.raises(SpecError) as error:
        spec_of(given, {})
    for word in words:
        assert word in str(error.value)
