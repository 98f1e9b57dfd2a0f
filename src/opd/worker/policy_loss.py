"""verl's policy loss in the form in which the output head adds it to a divergence."""

from __future__ import annotations

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.workers.config import ActorConfig

from opd.config.algorithm import Policy
from opd.losses.policy import TokenLoss


def policy_loss(policy: Policy) -> TokenLoss:
    """PPO's clipped loss with the dual clip, verl's `vanilla`, token by token.

    verl returns sums only. A sum of masked losses is linear in the mask: its derivative by the mask is each token's loss.
    """
    config = ActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio=policy.clip_ratio_low,
        clip_ratio_low=policy.clip_ratio_low,
        clip_ratio_high=policy.clip_ratio_high,
        clip_ratio_c=policy.clip_ratio_c,
        loss_agg_mode="token-sum",
    )
    loss_of = get_policy_loss_fn("vanilla")

    def of_tokens(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            current = log_probs.detach().requires_grad_()
            mask = torch.ones_like(current, requires_grad=True)
            total, _ = loss_of(
                old_log_prob=old_log_probs.detach(),
                log_prob=current,
                advantages=advantages,
                response_mask=mask,
                loss_agg_mode=config.loss_agg_mode,
                config=config,
            )
            losses, slopes = torch.autograd.grad(total, (mask, current))
        return losses, slopes

    return of_tokens
