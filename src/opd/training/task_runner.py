"""Builds trainer and rollout manager from a resolved config and runs them; in this process or as a Ray actor."""

from __future__ import annotations

from typing import Any

import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from verl.utils.logging_utils import configure_verl_logging

from opd.runs.run import Run
from opd.training.rollout_manager import RolloutManager
from opd.training.trainer import OPDTrainer, OrderedTrainer


class TaskRunner:
    """verl's V1 task runner with our trainers; `run` returns when training (or validation) has ended."""

    def run(self, config: DictConfig, run: Run | None = None) -> dict[str, Any]:
        """The result: steps done and the validation scores before and after."""
        configure_verl_logging()
        config.transfer_queue.enable = True
        OmegaConf.resolve(config)
        distils = config.run.kind in ("opd", "opd-agent")
        tq.init(config.transfer_queue)
        trainer = None
        succeeded = False
        try:
            trainer = (OPDTrainer if distils else OrderedTrainer)(config=config, run=run)
            trainer.init()
            manager = RolloutManager(config, trainer.get_llm_client(), trainer.get_reward_handles())
            trainer.fit(manager)
            succeeded = True
            return {
                "steps": trainer.total_training_steps,
                "validation_before": trainer.logger.first_validation,
                "validation_after": trainer.logger.last_validation,
            }
        finally:
            try:
                if trainer is not None and trainer.logger is not None:
                    trainer.logger.finish(exit_code=0 if succeeded else 1)
            finally:
                tq.close()
