"""Kind `grpo`: verl's advantages, and the update of all kinds with a policy loss."""

from __future__ import annotations

from typing import Any

from omegaconf import open_dict
from transfer_queue import KVBatchMeta

from opd.trainer.trainer import OrderedTrainer
from opd.worker import counts
from opd.worker.policy_worker import PolicyWorker, reduce


class GrpoTrainer(OrderedTrainer):
    """The worker reads old and reference log-probabilities itself, where the loss needs them."""

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        self._set_worker(next(iter(self.role_worker_mapping)), PolicyWorker)

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        return batch

    def _compute_ref_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        return batch

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        # verl would correct by old log-probabilities, which are not there; the spec's rules refuse every correction.
        algorithm = self.config.algorithm
        configured = algorithm.rollout_correction
        with open_dict(algorithm):
            algorithm.rollout_correction = None
            try:
                return super()._compute_advantage(batch, metrics)
            finally:
                algorithm.rollout_correction = configured

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        batch.extra_info.update(self.update_settings)
        raw = self.actor_rollout_wg.update_policy(batch)["metrics"]
        metrics.update(reduce(raw))
        self._skipped.see(made=round(metrics["actor/num_updates"]), skipped_last=counts.skipped_last(raw))
        return batch
