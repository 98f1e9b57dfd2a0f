"""The worker of an evaluation: verl's, which serves the model's weights and trains nothing, with our attention and seeds."""

from __future__ import annotations

from verl.workers.config import TrainingWorkerConfig
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from opd.compat import vllm_ranks
from opd.rollout.seeds import SeededRank
from opd.worker.checkpointing import ShardUploads
from opd.worker.training_workers import NamedDevice, served_worker

vllm_ranks.register()


class ServedWorker(SeededRank, ShardUploads, NamedDevice, ActorRolloutRefWorker):
    """verl's hybrid worker."""

    def actor_worker_cls(self, config: TrainingWorkerConfig) -> TrainingWorker:
        return served_worker(config)
