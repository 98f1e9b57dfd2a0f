"""The worker of supervised fine-tuning: GRPO's without rollout and reference, with cross-entropy as its loss."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDict
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.utils import tensordict_utils as tu

from opd.worker.answer_loss import LOSS_SUM, NUM_TOKENS, answer_loss, sums
from opd.worker.nonfinite import count_norms
from opd.worker.policy_worker import PPOWorker


class AnswerWorker(PPOWorker):
    """Trains on rows of given answers, and measures the loss on others; in role `actor` it builds no rollout."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        super().init_model()
        self.set_loss_fn(answer_loss)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def update_actor(self, data: TensorDict) -> TensorDict:
        """Every optimizer update of one step over this rank's rows.

        Args:
            data: nested `input_ids`, `position_ids`, `prompts`, `responses`, `response_mask`, `loss_mask` (both [B, response]);
                the batch settings of verl's `train_mini_batch`.

        Returns:
            No rows; `metrics`: verl's, with `loss`, the mean over all trained tokens of the step, and `num_tokens`.
        """
        output = self.actor.train_mini_batch(data=data)
        if output is None:
            return None
        metrics: dict[str, Any] = tu.get(output, "metrics")
        loss, num_tokens = sums(metrics)
        for name in (LOSS_SUM, NUM_TOKENS):
            del metrics[name]
        metrics |= {"loss": [loss / max(num_tokens, 1.0)], "num_tokens": [num_tokens]}
        count_norms(metrics)
        return output.cpu()

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def measure_loss(self, data: TensorDict) -> TensorDict:
        """The loss on rows as of `update_actor`, without a gradient; no rows, and `metrics` for `answer_loss.sums`."""
        engine = self.actor.engine_config
        if not engine.use_dynamic_bsz:
            # verl cuts a rank's rows into equal parts; a last batch, filled up to whole mini-batches, may be too short for ours.
            limit = min(engine.infer_micro_batch_size_per_gpu, len(data))
            size = next(size for size in range(limit, 0, -1) if len(data) % size == 0)
            tu.assign_non_tensor(data, micro_batch_size_per_gpu=size)
        output = self.actor.infer_batch(data=data)
        if output is None:
            return None
        metrics = tu.get(output, "metrics")
        return tu.get_tensordict(
            tensor_dict={}, non_tensor_dict={"metrics": {name: metrics[name] for name in (LOSS_SUM, NUM_TOKENS)}}
        )
