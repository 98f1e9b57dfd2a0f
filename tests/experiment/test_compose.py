"""verl's real config takes every override: no key is misspelt, and the values arrive."""

import importlib.util
from pathlib import Path

import hydra
import pytest
from omegaconf import OmegaConf
from tests.minimal import MINIMAL

import opd
from opd.experiment import parse_tree
from opd.experiment.run_config import RunFacts
from opd.experiment.verl import compute_overrides

CONFIG_DIR = Path(opd.__file__).parent / "experiment"
VERL = Path(importlib.util.find_spec("verl").submodule_search_locations[0])
RUN = RunFacts(run_id="r", run_dir="/runs/r")
EVERYTHING = MINIMAL["opd"] | {
    "opd": {"loss_type": "jsd", "reward_beta": 0.5},
    "rollout": {"num_samples": 2, "engine_kwargs": {"attention_backend": "X", "nested": {"k": [1, "a"]}}},
    "trainer": {"total_steps": 3, "master_port": 29500},
    "data": {"max_train_samples": 5, "max_val_samples": 5},
    "env": {"NCCL_DEBUG": "INFO"},
    "checkpoint": {"keep_last": 2, "keep_every": 10},
}


def compose(spec, run=RUN):
    # The folder of verl's configs instead of its package: the same files without the ten seconds of importing verl.
    search = f"hydra.searchpath=[file://{VERL}/trainer/config]"
    with hydra.initialize_config_dir(str(CONFIG_DIR), version_base=None):
        return hydra.compose("opd_trainer", overrides=[*compute_overrides(spec, run=run), search])


def specs():
    grpo = MINIMAL["grpo"]
    for kind in sorted(MINIMAL.keys() - {"convert", "pipeline"}):
        yield pytest.param(parse_tree(MINIMAL[kind]).spec, id=kind)
    for recipe in ("grpo", "grpo-native", "grpo-native-no-kl"):
        yield pytest.param(parse_tree(grpo | {"recipe": recipe}).spec, id=f"recipe {recipe}")
    yield pytest.param(parse_tree(grpo | {"agent": {"database_dir": "d"}}).spec, id="grpo with tools")
    yield pytest.param(parse_tree(EVERYTHING).spec, id="every optional key")


@pytest.mark.parametrize("spec", list(specs()))
def test_verls_config_takes_every_override_and_resolves(spec):
    tree = OmegaConf.to_container(compose(spec), resolve=True)
    assert tree["actor_rollout_ref"]["actor"]["optim"]["lr"] == spec.actor.learning_rate
    assert tree["actor_rollout_ref"]["rollout"]["response_length"] == spec.data.max_response_length
    assert tree["data"]["val_files"] == list(spec.data.val)


def test_only_keys_that_verls_config_does_not_list_are_added():
    # `++` hides a misspelling, so each such key is known by name: verl reads it although its YAML does not list it.
    added = {
        line.split("=", 1)[0]
        for param in specs()
        for line in compute_overrides(param.values[0], run=RUN)
        if line.startswith("++")
    }
    prefixes = {
        "++actor_rollout_ref.model.override_config.attn_implementation",
        "++actor_rollout_ref.actor.fsdp_config.mixed_precision.",
        "++actor_rollout_ref.ref.fsdp_config.mixed_precision.",
        "++actor_rollout_ref.rollout.engine_kwargs.",
        "++data.apply_chat_template_kwargs.enable_thinking",
        "++data.toolset",  # read by our own data set
        "++reward.custom_reward_function.reward_kwargs.",
        "++ray_kwargs.ray_init.",
    }
    assert {key for key in added if not key.startswith(tuple(prefixes))} == set()
