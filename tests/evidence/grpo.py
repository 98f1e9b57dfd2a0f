"""GRPO's loss by verl's own functions, which are imported with the first update: the other studies run without verl."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from tests.evidence.settings import Settings
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


def policy_loss_sum(
    log_probs: Tensor,
    reference_log_probs: Tensor,
    response_lens: Tensor,
    right: NDArray[np.bool_],
    groups: Sequence[int],
    settings: Settings,
) -> Tensor:
    """Sum over tokens of verl's clipped policy loss and of its KL loss; the trainer's mean is over all tokens alike.

    The answers are of the model as it is, so the old log-probabilities are the new ones without their gradient.

    Args:
        log_probs, reference_log_probs: [num_response_tokens], row after row, of the learner and of the model before GRPO.
        response_lens: [B] int64. right: [B], the reward. groups: [B], each row's problem.
    """
    from verl.trainer.ppo.core_algos import agg_loss, get_adv_estimator_fn, get_policy_loss_fn, kl_penalty
    from verl.workers.config import ActorConfig

    config = ActorConfig(
        strategy="fsdp",
        rollout_n=settings.num_answers,
        ppo_micro_batch_size_per_gpu=settings.batch_size,
        clip_ratio=settings.grpo_clip_ratio,
        clip_ratio_low=settings.grpo_clip_ratio,
        clip_ratio_high=settings.grpo_clip_ratio,
        loss_agg_mode="token-sum",
    )
    lens = response_lens.tolist()
    padded, reference = (
        pad_sequence(list(packed.split(lens)), batch_first=True) for packed in (log_probs, reference_log_probs)
    )
    mask = (torch.arange(padded.shape[1], device=padded.device) < response_lens[:, None]).float()
    rewards = torch.zeros_like(mask)
    rewards[torch.arange(len(lens)), response_lens - 1] = torch.from_numpy(right).to(mask)
    advantages, _ = get_adv_estimator_fn("grpo")(
        token_level_rewards=rewards, response_mask=mask, index=np.asarray(groups)
    )
    loss, _ = get_policy_loss_fn("vanilla")(
        old_log_prob=padded.detach(),
        log_prob=padded,
        advantages=advantages,
        response_mask=mask,
        loss_agg_mode=config.loss_agg_mode,
        config=config,
    )
    divergence = kl_penalty(padded, reference, config.kl_loss_type)
    kl_loss = agg_loss(loss_mat=divergence, loss_mask=mask, loss_agg_mode=config.loss_agg_mode)
    total: Tensor = loss + settings.grpo_kl_coef * kl_loss
    return total
