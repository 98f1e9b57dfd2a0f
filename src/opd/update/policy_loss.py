"""verl's policy losses, by its names: token by token where a token's loss needs no other, else over a whole micro-batch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import get_policy_loss_fn, kl_penalty
from verl.workers.config import ActorConfig

from opd.errors import Unfit


class Clips(NamedTuple):
    """Bounds of the probability ratio, as verl names them."""

    low: float
    high: float
    dual: float
    dro_beta: float = 0.0


def _log_ratio(log_prob: Tensor, old: Tensor) -> Tensor:
    return (log_prob - old).clamp(-20.0, 20.0)  # verl's bounds


def _plain_and_clipped(log_prob: Tensor, old: Tensor, advantages: Tensor, clips: Clips) -> tuple[Tensor, Tensor]:
    """Return PPO's loss by the probability ratio, and by the clipped ratio."""
    ratio = _log_ratio(log_prob, old).exp()
    return -advantages * ratio, -advantages * ratio.clamp(1 - clips.low, 1 + clips.high)


def vanilla(log_prob: Tensor, old: Tensor, advantages: Tensor, clips: Clips) -> Tensor:
    """Return PPO's clipped loss with the dual clip."""
    losses = torch.maximum(*_plain_and_clipped(log_prob, old, advantages, clips))
    return torch.where(advantages < 0, torch.minimum(losses, -advantages * clips.dual), losses)


def gpg(log_prob: Tensor, old: Tensor, advantages: Tensor, clips: Clips) -> Tensor:
    """Return the plain policy gradient's loss."""
    return -log_prob * advantages


def cispo(log_prob: Tensor, old: Tensor, advantages: Tensor, clips: Clips) -> Tensor:
    """Return the loss whose clipped ratio is a weight without a gradient."""
    return _plain_and_clipped(log_prob, old, advantages, clips)[1].detach() * log_prob


def dro(log_prob: Tensor, old: Tensor, advantages: Tensor, clips: Clips) -> Tensor:
    """Return the loss with a quadratic penalty of the log ratio."""
    return -(log_prob * advantages - 0.5 * clips.dro_beta * (log_prob - old).square())


LOCAL: Mapping[str, Callable[..., Tensor]] = {loss.__name__: loss for loss in (vanilla, gpg, cispo, dro)}
"""Losses of one pass, by verl's names. Others take two passes, by verl's own functions over the rows of a micro-batch."""


def clip_counts(clips: Clips, log_prob: Tensor, old: Tensor, advantages: Tensor) -> dict[str, Tensor]:
    """Return sums over tokens of verl's clip statistics."""
    plain, clipped = _plain_and_clipped(log_prob, old, advantages, clips)
    below = (torch.maximum(plain, clipped) > -advantages * clips.dual) & (advantages < 0)
    ppo_kl = -_log_ratio(log_prob, old).sum()
    return {"pg_clipfrac": (clipped > plain).sum(), "pg_clipfrac_lower": below.sum(), "ppo_kl": ppo_kl}


@dataclass(frozen=True)
class TokenLoss:
    """The loss of each token: a policy loss and an estimate of the KL to the reference; equal settings are equal objects.

    Args:
        mode: a name of `LOCAL`. None leaves the policy loss to a pass of its own.
        kl, kl_coef: verl's name of the estimator, and its weight. None means that there is none.
    """

    mode: str | None
    clips: Clips
    kl: str | None = None
    kl_coef: float = 0.0

    def __call__(self, log_prob: Tensor, old: Tensor, inputs: Tensor) -> Tensor:
        """Return losses [T]; `inputs` [T, 2] are the advantage and the reference's log-probability of each token."""
        advantages, reference = inputs[:, 0], inputs[:, 1]
        local = None if self.mode is None else LOCAL[self.mode]
        losses = torch.zeros_like(log_prob) if local is None else local(log_prob, old, advantages, self.clips)
        return losses if self.kl is None else losses + self.kl_coef * self.divergence(log_prob, reference)

    def divergence(self, log_prob: Tensor, reference: Tensor) -> Tensor:
        """Return the estimate of the KL [T], without its weight."""
        assert self.kl is not None
        estimate: Tensor = kl_penalty(log_prob, reference, self.kl)
        return estimate


def token_loss(config: ActorConfig, *, kl: str | None) -> TokenLoss:
    """Return the part of the loss that is local to a token."""
    mode, beta = str(config.policy_loss.get("loss_mode", "vanilla")), config.policy_loss.get("dro_beta")
    if mode == "dro" and not beta:
        raise Unfit(
            "actor_rollout_ref.actor.policy_loss.dro_beta is not set: loss_mode dro needs it; set a positive number"
        )
    clips = Clips(config.clip_ratio_low, config.clip_ratio_high, config.clip_ratio_c, float(beta or 0.0))
    return TokenLoss(mode if mode in LOCAL else None, clips, kl, config.kl_loss_coef if kl else 0.0)


def token_weights(config: ActorConfig, counts: Tensor) -> Tensor:
    """Return the weights [N] of rows' trained tokens in verl's aggregation mode; `counts` [B] are theirs."""
    per_row = 1.0 / counts.clamp(min=1) if config.loss_agg_mode == "seq-mean-token-mean" else torch.ones(len(counts))
    return per_row.repeat_interleave(counts)


def divisor_of(config: ActorConfig, *, batch_num_tokens: float, global_batch_size: float) -> float:
    """Return the divisor of the weighted sum over an update's tokens on all ranks, in verl's aggregation mode."""
    by_rows = float(global_batch_size)
    if config.loss_agg_mode == "seq-mean-token-sum-norm":
        by_rows *= float(config.loss_scale_factor or 1)
    return max({"token-mean": float(batch_num_tokens), "token-sum": 1.0}.get(config.loss_agg_mode, by_rows), 1.0)


def whole_loss(
    log_prob: Tensor,
    *,
    config: ActorConfig,
    mask: Tensor,
    old: Tensor | None,
    advantages: Tensor,
    sizes: Mapping[str, Any],
) -> tuple[Tensor, Tensor]:
    """Return verl's policy loss over the rows of a micro-batch, and its derivatives [N] by log-probabilities [N].

    The padded rows have N trained tokens at `mask` [B, T] bool. No `old` [N] means the current log-probabilities. The divisor
    of verl's `batch_num_tokens` and `global_batch_size` multiplies both.
    """
    mask = mask.to(log_prob.device)

    def padded(values: Tensor) -> Tensor:
        """Return [B, T] of values [N] at the trained tokens, 0 elsewhere."""
        return torch.zeros(mask.shape, dtype=values.dtype, device=values.device).masked_scatter(mask, values)

    with torch.enable_grad():
        current = log_prob.detach().requires_grad_()
        info = {**sizes, "loss_scale_factor": config.loss_scale_factor, "dp_size": 1}
        total, _ = get_policy_loss_fn(config.policy_loss.get("loss_mode"))(
            old_log_prob=padded(log_prob.detach() if old is None else old.to(current)),
            log_prob=padded(current),
            advantages=padded(advantages.to(current)),
            response_mask=mask,
            loss_agg_mode=config.loss_agg_mode,
            config=replace(config, global_batch_info=info),
        )
        (slopes,) = torch.autograd.grad(total, current)
    divisor = divisor_of(config, **sizes)
    return total.detach() * divisor, slopes * divisor
