"""The row kernel: per-token statistics and the logit gradient of one chunk of tokens, in plain torch.

`chunked_divergence` owns chunks and matrix products; all it asks of a device is this one function.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from opd.losses.divergence import DivergenceKind, tempered_log_probs


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
    student_entropy, teacher_entropy = -row_dot(p_s, log_s), -row_dot(p_t, log_t)
    student_log_prob = teacher_log_prob = None
    if token_ids is not None:
        student_log_prob, teacher_log_prob = _pick(log_s, token_ids), _pick(log_t, token_ids)

    with_gradient = gradient_scale is not None
    gradient = None
    if kind == "forward_kl":
        value = kl_terms(p_t, p_s, log_t.sub_(log_s))
        if with_gradient:
            gradient = p_s - p_t
    elif kind == "reverse_kl":
        log_ratio = log_s.sub_(log_t)
        value = kl_terms(p_s, p_t, log_ratio)
        if with_gradient:
            gradient = _centred(p_s, log_ratio)
    else:
        log_ratio, teacher_log_ratio = log_ratios_to_mixture(log_t.sub_(log_s), beta)
        p_m = torch.lerp(p_s, p_t, beta)
        value = beta * kl_terms(p_t, p_m, teacher_log_ratio) + (1.0 - beta) * kl_terms(p_s, p_m, log_ratio)
        if with_gradient:
            gradient = _centred(p_s, log_ratio).mul_(1.0 - beta)
    if gradient is not None and gradient_scale is not None:
        _restore_peak(gradient, p_s).mul_((gradient_scale / temperature).unsqueeze(-1))
    return RowStatistics(value, student_entropy, teacher_entropy, student_log_prob, teacher_log_prob), gradient


def row_dot(a: Tensor, b: Tensor) -> Tensor:
    """[C, V], [C, V] -> [C]: row-wise inner product."""
    return (a * b).sum(dim=-1)


def kl_terms(p: Tensor, q: Tensor, log_ratio: Tensor) -> Tensor:
    """KL(p || q) [C], with log_ratio = log p - log q, to nearly full precision where the two are close.

    sum p log_ratio adds large terms of both signs to a small result: fp32 leaves 1e-7 of error in a divergence that
    may itself be 1e-5. Both distributions sum to one, so the sum of p log_ratio + q - p is the same, and each of its
    terms is >= 0 and quadratic in log_ratio, which drops the normaliser's rounding error to second order. Where p and
    q are close, q - p = -+ max(p, q) (1 - exp(-|log_ratio|)) keeps the digits that subtracting them would lose.
    """
    q_minus_p = log_ratio.abs().neg_().expm1_().mul_(torch.maximum(p, q)).copysign_(log_ratio).neg_()
    return q_minus_p.addcmul_(p, log_ratio).sum(dim=-1)


def log_ratios_to_mixture(gap: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """log(p_S / m) and log(p_T / m) from gap = log p_T - log p_S, for m = beta p_T + (1 - beta) p_S; all [C, V].

    m / p_S = 1 + beta (exp(gap) - 1) and m / p_T = 1 + (1 - beta) (exp(-gap) - 1): whichever exponent is negative is
    taken, which cannot overflow, and the other ratio differs by the gap. Both keep their digits where they are small.
    Since m >= beta p_T and m >= (1 - beta) p_S, no ratio exceeds 1 / min(beta, 1 - beta): the bound matters only for
    a beta so near 0 or 1 that 1 - beta is rounded.
    """
    largest = -math.log(min(beta, 1.0 - beta))
    share = torch.where(gap <= 0, gap.new_tensor(beta), gap.new_tensor(1.0 - beta))
    log_ratio_to_larger = torch.expm1(-gap.abs()).mul_(share).log1p_().neg_().clamp_(max=largest)
    return log_ratio_to_larger - gap.clamp(min=0), log_ratio_to_larger + gap.clamp(max=0)


def _centred(p: Tensor, log_ratio: Tensor) -> Tensor:
    """p (log_ratio - sum p log_ratio); the mean is taken with the same rounding, so that each row sums to zero."""
    return (log_ratio - row_dot(p, log_ratio).unsqueeze(-1)).mul_(p)


def _restore_peak(gradient: Tensor, p: Tensor) -> Tensor:
    """In place: a peak's gradient is made minus the sum of the others.

    A token that the student is nearly sure of has p = 1 - epsilon there, and p - q or p (log_ratio - mean) is then a
    difference of nearly equal numbers; the other entries are small and exact, and the row sums to zero.
    """
    top, peak = p.max(dim=-1, keepdim=True)
    direct = gradient.gather(-1, peak)
    others = gradient.scatter_(-1, peak, 0.0).sum(dim=-1, keepdim=True)
    return gradient.scatter_(-1, peak, torch.where(top > 0.5, -others, direct))


def _pick(log_probs: Tensor, token_ids: Tensor) -> Tensor:
    """[C, V], [C] -> [C]: each row's log-probability of its token, -inf for an id that is not counted."""
    vocab = log_probs.shape[-1]
    picked = log_probs.gather(-1, token_ids.clamp(0, vocab - 1).unsqueeze(-1)).squeeze(-1)
    return picked.masked_fill((token_ids < 0) | (token_ids >= vocab), -torch.inf)
