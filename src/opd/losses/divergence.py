"""The three divergences between two next-token distributions, and their plain reference implementation."""

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

Exact = Literal["reverse_kl", "forward_kl", "jsd"]
Comparison = Literal["sampled_reverse_kl", "topk_reverse_kl"]
DivergenceKind = Exact | Comparison
DIVERGENCE_KINDS: tuple[Exact, ...] = get_args(Exact)
COMPARISONS: tuple[Comparison, ...] = get_args(Comparison)
"""What `opd.losses.rows` has to compare the exact reverse KL with; they exist on the plain path only."""

# A log-probability of -inf (a logit of -inf, or a gap that overflows fp32) times a probability of 0 is nan. Every
# finite fp32 or fp64 gap stays above this floor, and V * -1e30 still fits fp32, so nothing else is touched.
LOG_PROB_FLOOR = -1e30


def check_divergence(kind: str, beta: float, temperature: float, *, kinds: Sequence[str] = DIVERGENCE_KINDS) -> None:
    """Refuse a divergence that is not defined.

    Raises:
        ValueError: `kind` is none of `kinds`, `beta` of a jsd lies outside (0, 1), or `temperature` is not positive.
    """
    if kind not in kinds:
        raise ValueError(f"divergence kind={kind!r}: must be one of {', '.join(kinds)}")
    if kind == "jsd" and not 0.0 < beta < 1.0:
        raise ValueError(
            f"divergence beta={beta!r}: jsd needs 0 < beta < 1, because at 0 and 1 the mixture is one of its two sides "
            "and the divergence is 0; use kind='reverse_kl' or kind='forward_kl' for the one-sided ones"
        )
    if not 0.0 < temperature < float("inf"):
        raise ValueError(
            f"divergence temperature={temperature!r}: must be positive and finite; 1.0 leaves logits alone"
        )


def compute_dtype(*tensors: Tensor) -> torch.dtype:
    """float64 where any input is float64, else float32: half precision is never summed in half precision."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def tempered_log_probs(logits: Tensor, temperature: float) -> Tensor:
    """log softmax(logits / temperature) over the last dimension, with -inf raised to `LOG_PROB_FLOOR`."""
    scaled = logits if temperature == 1.0 else logits / temperature
    return torch.log_softmax(scaled, dim=-1).clamp(min=LOG_PROB_FLOOR)


def divergence(
    student_logits: Tensor,
    teacher_logits: Tensor,
    kind: Exact,
    *,
    beta: float = 0.0,
    temperature: float = 1.0,
) -> Tensor:
    """Divergence of each token's two next-token distributions: the readable reference, under plain autograd.

    With p_S, p_T the softmax of the logits divided by the temperature (no factor temperature ** 2):

        reverse_kl = sum_v p_S (log p_S - log p_T)
        forward_kl = sum_v p_T (log p_T - log p_S)
        jsd        = beta KL(p_T || m) + (1 - beta) KL(p_S || m),  m = beta p_T + (1 - beta) p_S

    It keeps several [T, V] tensors for the backward: training uses `chunked_divergence`.

    Args:
        student_logits: [T, V], any float dtype; computed in float32, or in float64 if either side is float64.
        teacher_logits: [T, V]; receives no gradient.
        kind: `reverse_kl`, `forward_kl` or `jsd`.
        beta: weight of the teacher in the mixture of `jsd`, 0 < beta < 1, to be given; the other kinds ignore it.
        temperature: divides both logits.

    Returns:
        [T] in nats, finite for every input without nan or +inf.

    Raises:
        ValueError: different shapes (pad columns must be cut first, never filled), or an undefined divergence.
    """
    check_divergence(kind, beta, temperature)
    if student_logits.shape != teacher_logits.shape:
        raise ValueError(
            f"student_logits {tuple(student_logits.shape)} and teacher_logits {tuple(teacher_logits.shape)}: must have "
            "the same shape; cut both to the tokenizer's entries first"
        )
    dtype = compute_dtype(student_logits, teacher_logits)
    log_s = tempered_log_probs(student_logits.to(dtype), temperature)
    log_t = tempered_log_probs(teacher_logits.detach().to(dtype), temperature)
    if kind == "reverse_kl":
        return _kl(log_s, log_t)
    if kind == "forward_kl":
        return _kl(log_t, log_s)
    log_m = torch.logaddexp(log_t + math.log(beta), log_s + math.log1p(-beta))
    return beta * _kl(log_t, log_m) + (1.0 - beta) * _kl(log_s, log_m)


def _kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    return (log_p.exp() * (log_p - log_q)).sum(dim=-1)
