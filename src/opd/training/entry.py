"""From Hydra overrides to a finished run: compose, check, start Ray (or join a cluster), run the task runner."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import hydra
from omegaconf import DictConfig, OmegaConf, open_dict

CONFIG_NAME = "opd_trainer"


def config_dir() -> str:
    """The folder of `opd_trainer.yaml`."""
    return str(Path(__file__).resolve().parent.parent / "config")


def compose(overrides: list[str]) -> DictConfig:
    """verl's trainer config with our groups and `overrides` applied."""
    with hydra.initialize_config_dir(config_dir(), version_base=None):
        return hydra.compose(CONFIG_NAME, overrides=overrides)


def run_config(config: DictConfig, run=None) -> None:
    """Run a composed config to its end (raises what the run raises)."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ["TQDM_DISABLE"] = "1"  # our own line a step says more, and survives `kubectl logs`
    if config.trainer.device == "cpu":
        pass
    prepare(config)

    import ray
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    validate_config(config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    if not ray.is_initialized():
        runtime_env = OmegaConf.merge(get_ppo_ray_runtime_env(config), config.ray_kwargs.ray_init.get("runtime_env", {}))
        runtime_env.setdefault("env_vars", {})["TRANSFER_QUEUE_ENABLE"] = "1"
        kwargs = {**config.ray_kwargs.ray_init, "runtime_env": runtime_env}
        ray.init(**OmegaConf.to_container(OmegaConf.create(kwargs)))

    from opd.training.task_runner import TaskRunner

    TaskRunner().run(config, run)


def prepare(config: DictConfig) -> None:
    """Fill in what only the models can tell: the teacher's path key of the original, and the shared vocabulary."""
    with open_dict(config):
        original_key = OmegaConf.select(config, "actor_rollout_ref.ref.model.path")
        if original_key is not None:
            config.opd.teacher.path = config.opd.teacher.path or original_key
            config.actor_rollout_ref.ref.pop("model")
        if config.run.kind in ("opd", "opd-agent"):
            from opd.training.tokenizers import shared_vocab_size

            config.opd.valid_vocab = shared_vocab_size(
                config.actor_rollout_ref.model.path, config.opd.teacher.path, config.actor_rollout_ref.model.trust_remote_code
            )


def run(spec, overrides: list[str]) -> int:
    """`opd.launch`'s way in: the exit code (0 done, 1 our error or verl's)."""
    run_config(compose(overrides))
    sys.stdout.flush()
    return 0
