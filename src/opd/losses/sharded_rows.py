"""The row kernel for a slice of the vocabulary: `opd.losses.rows` with the sums over entries completed by other ranks."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed

from opd.losses.divergence import LOG_PROB_FLOOR, DivergenceKind
from opd.losses.rows import kl_terms, log_ratios_to_mixture, row_dot

# All-reduces a tensor in place over the ranks that share the vocabulary.
Reduce = Callable[[Tensor, Any], object]


def sharded_row_statistics(
    student_logits: Tensor,
    teacher_logits: Tensor,
    kind: DivergenceKind,
    *,
    beta: float,
    temperature: float,
    picked: Tensor,
    gradient_scale: Tensor | None,
    reduce: Reduce,
) -> tuple[Tensor, Tensor | None]:
    """Statistics of whole rows and the slice's part of the gradient; formulas in `opd.losses.rows.row_statistics`.

    Four reductions of a few numbers a token: the maxima, the sums of exponentials, the parts of every statistic, and (for
    a gradient) the sum that restores a peak's entry.

    Args:
        student_logits, teacher_logits: [C, V_r] of this rank's slice, before the temperature; overwritten.
        picked: [C] int64, the token whose log-probability to return, counted from the slice's first entry; one outside
            the slice is another rank's.
        gradient_scale: [C] factor of each row's gradient, or None for statistics only.
        reduce: (values, op) -> None, in place; op is `ReduceOp.SUM` or `ReduceOp.MAX`.

    Returns:
        [5, C] divergence, student entropy, teacher entropy, log p_S and log p_T of the picked token (0 where no rank has
        it), the same on all ranks; and [C, V_r] or None.
    """
    log_s, log_t = _log_probs(student_logits, teacher_logits, temperature, reduce)
    p_s, p_t = log_s.exp(), log_t.exp()
    parts = [-row_dot(p_s, log_s), -row_dot(p_t, log_t), _pick(log_s, picked), _pick(log_t, picked)]
    makes_gradient, gradient, log_ratio = gradient_scale is not None, None, None
    if kind == "forward_kl":
        value = kl_terms(p_t, p_s, log_t.sub_(log_s))
        gradient = p_s - p_t if makes_gradient else None
    elif kind == "reverse_kl":
        log_ratio = log_s.sub_(log_t)
        value = kl_terms(p_s, p_t, log_ratio)
    else:
        log_ratio, teacher_log_ratio = log_ratios_to_mixture(log_t.sub_(log_s), beta)
        p_m = torch.lerp(p_s, p_t, beta)
        value = beta * kl_terms(p_t, p_m, teacher_log_ratio) + (1.0 - beta) * kl_terms(p_s, p_m, log_ratio)
    parts.insert(0, value)
    if log_ratio is not None:
        parts.append(row_dot(p_s, log_ratio))  # what the gradient is centred by
    sums = torch.stack(parts)
    reduce(sums, distributed.ReduceOp.SUM)
    if gradient_scale is None:
        return sums[:5], None
    if log_ratio is not None:
        gradient = log_ratio.sub_(sums[5].unsqueeze(-1)).mul_(p_s)
        if kind == "jsd":
            gradient.mul_(1.0 - beta)
    assert gradient is not None
    _restore_peak(gradient, p_s, reduce)
    return sums[:5], gradient.mul_((gradient_scale / temperature).unsqueeze(-1))


def _log_probs(student: Tensor, teacher: Tensor, temperature: float, reduce: Reduce) -> tuple[Tensor, Tensor]:
    """log softmax over all slices of both sides, in place, with -inf raised to `LOG_PROB_FLOOR`."""
    sides = [side if temperature == 1.0 else side.div_(temperature) for side in (student, teacher)]
    peaks = torch.stack([side.amax(dim=-1) for side in sides])
    reduce(peaks, distributed.ReduceOp.MAX)
    for side, peak in zip(sides, peaks, strict=True):
        side.sub_(peak.unsqueeze(-1))
    norms = torch.stack([side.exp().sum(dim=-1) for side in sides])
    reduce(norms, distributed.ReduceOp.SUM)
    for side, norm in zip(sides, norms, strict=True):
        side.sub_(norm.log().unsqueeze(-1)).clamp_(min=LOG_PROB_FLOOR)
    return sides[0], sides[1]


def _pick(log_probs: Tensor, picked: Tensor) -> Tensor:
    """[C, V_r], [C] -> [C]: each row's log-probability of its token, 0 where another slice has it."""
    entries = log_probs.shape[-1]
    found = log_probs.gather(-1, picked.clamp(0, entries - 1).unsqueeze(-1)).squeeze(-1)
    return found.masked_fill((picked < 0) | (picked >= entries), 0.0)


def _restore_peak(gradient: Tensor, p: Tensor, reduce: Reduce) -> None:
    """In place: a peak's gradient is made minus the sum of all others, whichever rank has it (see `opd.losses.rows`)."""
    top, peak = p.max(dim=-1, keepdim=True)
    has_peak = top > 0.5  # no two entries of a row are, so no two ranks are
    direct = gradient.gather(-1, peak)
    gradient.scatter_(-1, peak, torch.where(has_peak, 0.0, direct))
    others = gradient.sum(dim=-1, keepdim=True)
    reduce(others, distributed.ReduceOp.SUM)
    gradient.scatter_(-1, peak, torch.where(has_peak, -others, direct))
