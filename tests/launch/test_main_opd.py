"""`python -m opd.main_opd` with what people who know verl type: no key of ours is needed, and one place holds the defaults."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import hydra
import pytest
from omegaconf import DictConfig, OmegaConf

from opd.experiment import SpecError
from opd.experiment.raw import parse_raw
from opd.experiment.run_config import KEY, RunConfig
from opd.experiment.tree import get_path
from opd.experiment.verl import compute_overrides
from opd.launch import facts
from opd.main_opd import spec_of
from opd.trainer.entry import CONFIG_NAME, config_dir

VERL = Path(importlib.util.find_spec("verl").submodule_search_locations[0])  # type: ignore[union-attr, index]
MODELS = ["actor_rollout_ref.model.path=/models/student", "+actor_rollout_ref.ref.model.path=/models/teacher"]
FILES = ["data.train_files=/data/train.parquet", "data.val_files=/data/test.parquet"]
# What the original's own launch script sets.
ORIGINAL_SCRIPT = (Path(__file__).parents[1] / "promises/specs/original_overrides.txt").read_text().split()
DOZENS = {
    "the teacher alone": MODELS,
    "the original's script": [*ORIGINAL_SCRIPT, MODELS[1]],
    "a laptop": [*MODELS, *FILES, "trainer.device=cpu"],
    "jsd by reward": [*MODELS, "opd.loss_type=jsd", "opd.reward_beta=0.5", "actor_rollout_ref.rollout.n=8"],
    "two nodes": [*MODELS, "trainer.nnodes=2", "trainer.n_gpus_per_node=8", "data.train_batch_size=1024"],
    "an attention kernel": [*MODELS, "actor_rollout_ref.model.override_config.attn_implementation=sdpa"],
    "shared sequences": [*MODELS, "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2"],
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
        key = raw["key"]
        ours = OURS.get(key, key if key.startswith("opd.") else "")
        value = get_path(RunConfig.of(tree).tree()["spec"], ours) if ours else OmegaConf.select(tree, key)
        listed = list(value) if OmegaConf.is_list(value) else value
        assert listed in (typed, [typed]), text


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
    assert scorer.path == "pkg://opd.rewards"


def test_the_yaml_says_no_default_that_a_spec_has():
    yaml = OmegaConf.load(Path(config_dir()) / f"{CONFIG_NAME}.yaml")
    spec = spec_of(MODELS, {})
    typed = {parse_raw(line)["key"] for line in compute_overrides(spec, run=facts(spec))}
    assert {path for path in typed if OmegaConf.select(yaml, path) is not None} == set()


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
