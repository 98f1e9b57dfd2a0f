"""The row kernel: per-token statistics and the logit gradient of one chunk of tokens, in plain torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from opd.losses.divergence import LOG_PROB_FLOOR, Comparison, DivergenceKind, tempered_log_probs
from opd.losses.policy import PolicyTerm, pick, sampled_gradient


def compared_rows(
    kind: Comparison, log_s: Tensor, log_t: Tensor, *, picked: Tensor | None, top_k: int
) -> tuple[Tensor, Tensor]:
    """Value [C] of each row and its gradient [C, V] by the student's tempered logits z.

    With a = log p_S - log p_T and D = KL(p_S || p_T) = sum p_S a:

        sampled_reverse_kl  value a(y) of the sampled token y ("k1"); gradient (a(y) - D) d log p_S(y) / dz, which is the
                            policy gradient with the advantage D - a(y). Its mean over y ~ p_S is dD / dz: the baseline D,
                            the mean of a(y), changes no expectation.
        topk_reverse_kl     the KL of the two distributions over k + 1 events: the teacher's k most likely tokens, and all
                            others together, whose probabilities are exact sums. With b that distribution's log ratio,
                            of every token its own event's: p_S (b - sum p_S b).

    Args:
        log_s, log_t: [C, V] log-probabilities of student and teacher.
        picked: [C] int64, the sampled tokens; for `sampled_reverse_kl`.
        top_k: for `topk_reverse_kl`; with as many as there are entries, or one fewer, it is the reverse KL.
    """
    p_s = log_s.exp()
    if kind == "sampled_reverse_kl":
        if picked is None:
            raise ValueError("token_ids=None with kind='sampled_reverse_kl': give the sampled tokens")
        log_ratio = log_s - log_t
        value = pick(log_ratio, picked)
        return value, sampled_gradient(p_s, picked, value - (p_s * log_ratio).sum(-1))
    top = log_t.topk(min(top_k, log_t.shape[-1]), dim=-1).indices
    events_s, events_t = (_with_tail(side, top) for side in (log_s, log_t))
    log_ratio = events_s - events_t
    value = (events_s.exp() * log_ratio).sum(-1)
    of_token = log_ratio[:, -1:].expand_as(log_s).scatter(-1, top, log_ratio[:, :-1])
    return value, p_s * (of_token - (p_s * of_token).sum(-1, keepdim=True))


def _with_tail(log_probs: Tensor, top: Tensor) -> Tensor:
    """[C, k + 1] of the entries `top` [C, k], and of all others together."""
    others = log_probs.scatter(-1, top, LOG_PROB_FLOOR).logsumexp(-1, keepdim=True).clamp(min=LOG_PROB_FLOOR)
    return torch.cat([log_probs.gather(-1, top), others], dim=-1)


def row_statistics(
    student_logits: Tensor,
    teacher_logits: Tensor,
    kind: DivergenceKind,
    *,
    beta: float,
    temperature: float,
    picked: Tensor | None,
    gradient_scale: Tensor | None,
    top_k: int = 0,
    policy: PolicyTerm | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Divergence, entropies and token log-probabilities of each row, and the gradient of the scaled divergence.

    With a = log p_S - log p_T and z_S the student's logits before the temperature tau, the softmax Jacobian
    d log p_S(u) / d z_S(v) = (1{u = v} - p_S(v)) / tau turns any dD = sum_v p_S(v) g(v) dlog p_S(v) into
    dD / dz_S(v) = p_S(v) (g(v) - sum_u p_S(u) g(u)) / tau. The three g are:

        reverse_kl  D = sum p_S a            g = a + 1                  ->  p_S (a - D) / tau
        forward_kl  D = -sum p_T log p_S     g = -p_T / p_S             ->  (p_S - p_T) / tau
        jsd         m depends on p_S too, but sum_v m(v) dlog m(v) = sum_v dm(v) = 0 cancels that path:
                                             g = (1 - beta) (log(p_S / m) + 1)
                                             ->  (1 - beta) p_S (log(p_S / m) - KL(p_S || m)) / tau

    (constants in g drop out, because p_S sums to one). Every row of the gradient therefore sums to zero. The others are of
    `compared_rows`. A policy gradient adds its loss's derivative by log p_S(picked), times d log p_S(picked) / d z_S.

    Args:
        student_logits: [C, V] float32 or float64, before the temperature.
        teacher_logits: [C, V], same dtype; likewise.
        picked: [C] int64, the token whose log-probability to return; or None.
        gradient_scale: [C] factor of each row's gradient (the token's weight), or None for statistics only.
        top_k: of `compared_rows`.
        policy: of these tokens, which must be picked; None: none.

    Returns:
        [5, C] divergence, student entropy, teacher entropy, log p_S and log p_T of the picked token (0 where it is no
        entry), or the first three, or with a policy gradient [7, C], its losses and their derivatives after them; and the
        gradient [C, V] by the student's logits (None without a scale).
    """
    log_s, log_t = (tempered_log_probs(side, temperature) for side in (student_logits, teacher_logits))
    p_s, p_t = log_s.exp(), log_t.exp()
    parts = [-row_dot(p_s, log_s), -row_dot(p_t, log_t)]
    if picked is not None:
        parts += [pick(log_s, picked), pick(log_t, picked)]
    log_ratio = compared = None
    if kind == "sampled_reverse_kl" or kind == "topk_reverse_kl":
        value, compared = compared_rows(kind, log_s, log_t, picked=picked, top_k=top_k)
    elif kind == "forward_kl":
        value = kl_terms(p_t, p_s, log_t.sub_(log_s))
    elif kind == "reverse_kl":
        log_ratio = log_s.sub_(log_t)
        value = kl_terms(p_s, p_t, log_ratio)
    else:
        log_ratio, teacher_log_ratio = log_ratios_to_mixture(log_t.sub_(log_s), beta)
        p_m = torch.lerp(p_s, p_t, beta)
        value = beta * kl_terms(p_t, p_m, teacher_log_ratio) + (1.0 - beta) * kl_terms(p_s, p_m, log_ratio)
    parts.insert(0, value)
    num_statistics = len(parts)
    if log_ratio is not None and gradient_scale is not None:
        # What the gradient is centred by; with the divergence's own sum, rows would not add up to zero.
        parts.append(row_dot(p_s, log_ratio))
    sums = torch.stack(parts)
    if policy is not None:
        losses, slopes = policy.of(sums[3])
    if gradient_scale is None:
        return (sums if policy is None else torch.cat([sums, losses[None], slopes[None]])), None
    if compared is not None:
        gradient = compared
    elif log_ratio is None:
        gradient = p_s - p_t
    else:
        gradient = log_ratio.sub_(sums[-1].unsqueeze(-1)).mul_(p_s)
        if kind == "jsd":
            gradient.mul_(1.0 - beta)
    _restore_peak(gradient, p_s)
    gradient.mul_((gradient_scale / temperature).unsqueeze(-1))
    statistics = sums[:num_statistics]
    if policy is None:
        return statistics, gradient
    assert picked is not None
    more = sampled_gradient(p_s, picked, slopes * policy.token_weights.to(slopes.dtype) / temperature)
    _restore_peak(more, p_s)
    return torch.cat([statistics, losses[None], slopes[None]]), gradient.add_(more)


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


def _restore_peak(gradient: Tensor, p: Tensor) -> None:
    """Make a peak's gradient minus the sum of all others, in place.

    A token that the student is nearly sure of has p = 1 - epsilon there, and p - q or p (log_ratio - mean) is then a
    difference of nearly equal numbers; the other entries are small and exact, and the row sums to zero.
    """
    top, peak = p.max(dim=-1, keepdim=True)
    has_peak = top > 0.5
    direct = gradient.gather(-1, peak)
    gradient.scatter_(-1, peak, torch.where(has_peak, 0.0, direct))
    others = gradient.sum(dim=-1, keepdim=True)
    gradient.scatter_(-1, peak, torch.where(has_peak, -others, direct))
