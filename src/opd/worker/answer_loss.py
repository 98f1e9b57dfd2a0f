"""The loss of supervised fine-tuning: cross-entropy of the tokens that are trained, their mean over a whole mini-batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict
from verl.workers.utils.padding import response_from_nested

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
