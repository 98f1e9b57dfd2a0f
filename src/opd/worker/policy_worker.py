"""The worker of GRPO and evaluation: verl's, with checkpoints, seeds, attention and the count of skipped updates of ours."""

from __future__ import annotations

from tensordict import TensorDict
from verl.single_controller.base.decorator import make_nd_compute_dataproto_dispatch_fn, register
from verl.utils import tensordict_utils as tu
from verl.utils.profiler import DistProfiler
from verl.workers.config import TrainingWorkerConfig
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker, _with_routing_replay_flag

from opd.compat import vllm_ranks
from opd.rollout.seeds import SeededRank
from opd.worker.checkpointing import ShardUploads
from opd.worker.nonfinite import count_norms
from opd.worker.training_workers import NamedDevice, policy_worker

vllm_ranks.register()


class PPOWorker(SeededRank, ShardUploads, NamedDevice, ActorRolloutRefWorker):
    """verl's hybrid worker; the engines of actor and reference policy know our attention."""

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    @DistProfiler.annotate(color="red", role="actor_update", scheduled=True)
    @_with_routing_replay_flag(enabled=True)
    def update_actor(self, data: TensorDict) -> TensorDict:
        """verl's update, its updates and skipped updates counted among the metrics."""
        output = self.actor.train_mini_batch(data=data)
        if output is None:
            return None
        count_norms(tu.get(output, "metrics"))
        return output.cpu()

    def ref_worker_cls(self, config: TrainingWorkerConfig) -> TrainingWorker:
        return policy_worker(config)

    def actor_worker_cls(self, config: TrainingWorkerConfig) -> TrainingWorker:
        return policy_worker(config)
