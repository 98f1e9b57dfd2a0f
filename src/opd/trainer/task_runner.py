"""Builds trainer and rollout manager from a resolved config and runs them in this process."""

from __future__ import annotations

import contextlib
from typing import Any

import ray
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from verl.utils.logging_utils import configure_verl_logging

from opd.config.run_config import RunConfig
from opd.rollout.manager import RolloutManager
from opd.rollout.serving import CPU_ROLLOUT, start_cpu_servers
from opd.runs.run import Run
from opd.trainer.distillation import OPDTrainer
from opd.trainer.grpo import GrpoTrainer
from opd.trainer.sft import SftTrainer
from opd.trainer.trainer import OrderedTrainer
from opd.worker.background import Job

_KILL_POLL_S = 0.5


class RunQueue:
    """TransferQueue as the trainer's process starts and closes it.

    Args:
        config: verl's `transfer_queue`.
    """

    def __init__(self, config: DictConfig) -> None:
        storage = config.backend.SimpleStorage
        # As TransferQueue names them: (name, namespace), None for the run's own.
        self._actors: list[tuple[str, str | None]] = [("TransferQueueController", "transfer_queue")]
        self._actors += [(f"TransferQueueStorageUnit#{i}", None) for i in range(storage.num_data_storage_units)]
        self._start = Job(lambda: tq.init(config), name="transfer-queue")

    def wait_until_up(self) -> None:
        """Until it can be used; raises what its start raised."""
        self._start.result()

    def close(self) -> None:
        """End it. A start that has not ended waits for its actors without a bound, so they are taken from it."""
        while not self._start.wait(_KILL_POLL_S):
            for name, namespace in self._actors:
                with contextlib.suppress(ValueError):  # not there yet, or no more
                    ray.kill(ray.get_actor(name, namespace=namespace))
        tq.close()


_TRAINERS: dict[str, type[OrderedTrainer]] = {
    "grpo": GrpoTrainer,
    "opd": OPDTrainer,
    "opd-agent": OPDTrainer,
    "sft": SftTrainer,
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
        servers = start_cpu_servers(config) if config.actor_rollout_ref.rollout.name == CPU_ROLLOUT else {}
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
