"""The row kernel: per-token statistics and the logit gradient of one chunk of tokens, in plain torch.

`chunked_divergence` owns chunks and matrix products; all it asks of a device is this one function.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from opd.losses.divergence import DivergenceKind, log_mixture, tempered_log_probs


class RowStatistics(NamedTuple):
    """Per-token statistics, each [C] for a chunk of C tokens."""

    divergence: Tensor
    student_entropy: Tensor
    teacher_entropy: Tensor
    student_log_prob: Tensor | None
    teacher_log_prob: Tensor | None


def row_statistics(
    student_logits: Tensor,
    teacher_logits: Tensor,
    kind: DivergenceKind,
    *,
    beta: float,
    temperature: float,
    token_ids: Tensor | None,
    gradient_scale: Tensor | None,
) -> tuple[RowStatistics, Tensor | None]:
    """Divergence, entropies and token log-probabilities of each row, and the gradient of the scaled divergence.

    With a = log p_S - log p_T and z_S the student's logits before the temperature tau, the softmax Jacobian
    d log p_S(u) / d z_S(v) = (1{u = v} - p_S(v)) / tau turns any dD = sum_v p_S(v) g(v) dlog p_S(v) into
    dD / dz_S(v) = p_S(v) (g(v) - sum_u p_S(u) g(u)) / tau. The three g are:

        reverse_kl  D = sum p_S a            g = a + 1                  ->  p_S (a - D) / tau
        forward_kl  D = -sum p_T log p_S     g = -p_T / p_S             ->  (p_S - p_T) / tau
        jsd         m depends on p_S too, but sum_v m(v) dlog m(v) = sum_v dm(v) = 0 cancels that path:
                                             g = (1 - beta) (log(p_S / m) + 1)
                                             ->  (1 - beta) p_S (log(p_S / m) - KL(p_S || m)) / tau

    (constants in g drop out, because p_S sums to one). Every row of the gradient therefore sums to zero.

    Args:
        student_logits: [C, V] float32 or float64, before the temperature; may be overwritten.
        teacher_logits: [C, V], same dtype; may be overwritten.
        token_ids: [C] int64 or None. An id outside [0, V) has probability 0: its log-probability is -inf.
        gradient_scale: [C] factor of each row's gradient (the token's weight), or None for statistics only.

    Returns:
        The statistics, and the gradient [C, V] with respect to the student's logits (None without a scale).
    """
    log_s = tempered_log_probs(student_logits, temperature)
    log_t = tempered_log_probs(teacher_logits, temperature)
    p_s, p_t = log_s.exp(), log_t.exp()
    student_entropy, teacher_entropy = -_dot(p_s, log_s), -_dot(p_t, log_t)
    student_log_prob = teacher_log_prob = None
    if token_ids is not None:
        student_log_prob, teacher_log_prob = _pick(log_s, token_ids), _pick(log_t, token_ids)

    if kind == "forward_kl":
        value = _dot(p_t, log_t.sub_(log_s))
        gradient = p_s.sub_(p_t) if gradient_scale is not None else None
    else:
        if kind == "reverse_kl":
            factor, log_ratio = 1.0, log_s.sub_(log_t)  # a
            centre = value = _dot(p_s, log_ratio)
        else:
            factor, log_m = 1.0 - beta, log_mixture(log_s, log_t, beta)
            log_ratio = log_s.sub_(log_m)  # log(p_S / m)
            centre = _dot(p_s, log_ratio)  # KL(p_S || m)
            value = beta * _dot(p_t, log_t.sub_(log_m)) + factor * centre
        gradient = None
        if gradient_scale is not None:
            gradient = log_ratio.sub_(centre.unsqueeze(-1)).mul_(p_s).mul_(factor)
    if gradient is not None and gradient_scale is not None:
        gradient.mul_((gradient_scale / temperature).unsqueeze(-1))
    return RowStatistics(value, student_entropy, teacher_entropy, student_log_prob, teacher_log_prob), gradient


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """[C, V], [C, V] -> [C]: row-wise inner product."""
    return (a * b).sum(dim=-1)


def _pick(log_probs: Tensor, token_ids: Tensor) -> Tensor:
    """[C, V], [C] -> [C]: each row's log-probability of its token, -inf for an id that is not counted."""
    vocab = log_probs.shape[-1]
    picked = log_probs.gather(-1, token_ids.clamp(0, vocab - 1).unsqueeze(-1)).squeeze(-1)
    return picked.masked_fill((token_ids < 0) | (token_ids >= vocab), -torch.inf)
