"""A policy gradient on the sampled tokens, which the output head adds to the divergence in the same pass over the logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from opd.losses.divergence import compute_dtype, tempered_log_probs

TokenLoss = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(log p, old log p, advantage) of C tokens -> their losses and the derivatives of these by log p; all [C], no graph."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PolicyTerm:
    """What a policy gradient needs to know of T tokens beside the student's logits.

    Args:
        token_loss: the loss of each token.
        advantages: [T] of the tokens' answers.
        token_weights: [T] factor of each token in the loss sum.
        old_log_probs: [T] log p of the tokens under the student that sampled them; None: it is the student itself, so that
            every ratio is 1.
    """

    token_loss: TokenLoss
    advantages: Tensor
    token_weights: Tensor
    old_log_probs: Tensor | None = None

    def at(self, tokens: slice | Tensor) -> PolicyTerm:
        """The term of some of the tokens, by their places or by a mask."""
        old = self.old_log_probs
        return replace(
            self,
            advantages=self.advantages[tokens],
            token_weights=self.token_weights[tokens],
            old_log_probs=None if old is None else old[tokens],
        )

    def of(self, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        """Losses [T] and their derivatives [T] by `log_probs` [T], both without the weights."""
        old = log_probs if self.old_log_probs is None else self.old_log_probs.to(log_probs.dtype)
        return self.token_loss(log_probs, old, self.advantages.to(log_probs.dtype))


def sampled_gradient(p: Tensor, picked: Tensor, slopes: Tensor) -> Tensor:
    """[C, V] slope d log p(picked) / d z = slope (1{v = picked} - p), for probabilities p [C, V] of logits z.

    Args:
        picked: [C] int64; a token that does not count, outside [0, V), gets no gradient.
        slopes: [C]
    """
    is_there = (picked >= 0) & (picked < p.shape[-1])
    slopes = torch.where(is_there, slopes, 0.0).unsqueeze(-1)
    return (p * -slopes).scatter_add_(-1, picked.clamp(0, p.shape[-1] - 1).unsqueeze(-1), slopes)


@torch.no_grad()
def token_log_probs(
    hidden: Tensor, weight: Tensor, token_ids: Tensor, *, temperature: float, valid_vocab: int, chunk_size: int
) -> Tensor:
    """[T] log softmax(hidden @ weight[:valid_vocab].T / temperature) of each token, `chunk_size` rows of logits at a time.

    Computed as `chunked_divergence` computes `student_log_prob`, in float32 (float64 if an input is).

    Args:
        hidden: [T, d] hidden states after the final norm. weight: [V, d] output head without bias, V >= valid_vocab.
        token_ids: [T] int64; one that does not count has a log-probability of 0.
    """
    dtype = compute_dtype(hidden, weight)
    parts = [torch.zeros(0, dtype=dtype, device=hidden.device)]
    with torch.autocast(hidden.device.type, enabled=False):
        head = weight.detach()[:valid_vocab].to(dtype)
        for states, picked in zip(hidden.detach().split(chunk_size), token_ids.split(chunk_size), strict=True):
            parts.append(pick(tempered_log_probs(states.to(dtype) @ head.T, temperature), picked))
    return torch.cat(parts)


def pick(log_probs: Tensor, picked: Tensor) -> Tensor:
    """[C, V], [C] -> [C]: each row's log-probability of its token, 0 where that is not among the entries."""
    entries = log_probs.shape[-1]
    found = log_probs.gather(-1, picked.clamp(0, entries - 1).unsqueeze(-1)).squeeze(-1)
    return found.masked_fill((picked < 0) | (picked >= entries), 0.0)
