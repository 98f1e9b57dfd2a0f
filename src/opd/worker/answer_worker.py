"""The worker of supervised fine-tuning: GRPO's without rollout and reference, with cross-entropy as its loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.utils import tensordict_utils as tu
from verl.workers.utils.padding import response_from_nested

from opd.worker.nonfinite import count_norms
from opd.worker.policy_worker import PPOWorker
from opd.worker.step_metrics import exact_sum, flatten

LOSS_SUM, NUM_TOKENS = "sum/loss", "sum/tokens"


def answer_loss(
    model_output: Mapping[str, torch.Tensor], data: TensorDict, dp_group: Any = None
) -> tuple[torch.Tensor, dict[str, float]]:
    """verl's hook for the loss of a micro-batch.

    The loss is the sum of -log p over the micro-batch's trained tokens, divided by the number of trained tokens of the
    mini-batch over all ranks. It is multiplied by the number of ranks with different rows, over which FSDP takes the mean of
    gradients: how a mini-batch is cut, and where its rows are, does not count.

    Args:
        model_output: nested `log_probs` [B, prompt + response], of the next token at each place.
        data: `response_mask` nested [B, response], 1 for a trained token; by verl's engine `batch_num_tokens`, `dp_size`.

    Returns:
        The loss, a scalar with a graph, and the micro-batch's sums.
    """
    mask = data["response_mask"]
    of_responses = response_from_nested(model_output["log_probs"], mask).values()
    loss_sum = -of_responses[mask.values().bool()].sum()
    loss = loss_sum * data["dp_size"] / max(data["batch_num_tokens"], 1)
    return loss, {LOSS_SUM: loss_sum.detach().item(), NUM_TOKENS: float(mask.values().sum())}


def sums(raw: Mapping[str, Any]) -> tuple[float, float]:
    """(loss, number of trained tokens), each summed over the lists that micro-batches, ranks and mini-batches made."""
    return exact_sum(flatten(raw[LOSS_SUM])), exact_sum(flatten(raw[NUM_TOKENS]))


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
