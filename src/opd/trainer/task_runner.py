"""Builds trainer and rollout manager from a resolved config and runs them in this process."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf
from verl.utils.logging_utils import configure_verl_logging

from opd.config.run_config import RunConfig
from opd.rollout.manager import RolloutManager
from opd.runs.run import Run
from opd.trainer.distillation import OPDTrainer
from opd.trainer.evaluation import EvalTrainer
from opd.trainer.queue import RunQueue
from opd.trainer.sft import SftTrainer
from opd.trainer.startup import start_cpu_servers
from opd.trainer.trainer import OrderedTrainer

CPU_ROLLOUT = "cpu"
_TRAINERS: dict[str, type[OrderedTrainer]] = {
    "grpo": OrderedTrainer,
    "opd": OPDTrainer,
    "opd-agent": OPDTrainer,
    "sft": SftTrainer,
    "eval": EvalTrainer,
    "passrate": EvalTrainer,
}


def _rollout_manager(config: DictConfig, trainer: OrderedTrainer) -> RolloutManager:
    return RolloutManager(config, trainer.get_llm_client(), trainer.get_reward_handles())


class TaskRunner:
    """verl's V1 task runner with our trainers; `run` returns when training (or validation) has ended."""

    def run(self, config: DictConfig, run: Run | None = None) -> dict[str, Any]:
        """The result: steps done and the validation scores before and after."""
        configure_verl_logging()
        config.transfer_queue.enable = True
        OmegaConf.resolve(config)
        queue = RunQueue(config.transfer_queue)
        # Held to the end: handles found by name, as verl's are, do not keep an actor alive.
        servers = start_cpu_servers(config) if config.actor_rollout_ref.rollout.name == CPU_ROLLOUT else []
        trainer = None
        succeeded = False
        try:
            trainer = _TRAINERS[RunConfig.of(config).spec.kind](config=config, run=run)
            trainer.init()
            queue.wait_until_up()
            trainer.fit(None if isinstance(trainer, SftTrainer) else _rollout_manager(config, trainer))
            succeeded = True
            return trainer.outcome()
        finally:
            try:
                if trainer is not None and trainer.logger is not None:
                    trainer.logger.finish(exit_code=0 if succeeded else 1)
            finally:
                queue.close()
                del servers
