"""Several teachers of one token: the divergence from their mixed distribution, or the mean of the divergences from each."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from opd.losses.divergence import tempered_log_probs
from opd.losses.rows import row_statistics

BlendForm = Literal["mixture", "sum"]


@dataclass(frozen=True, kw_only=True)
class Blend:
    """How K teachers are one, with shares w_k that sum to 1 and p_k the softmax of teacher k's logits divided by the temperature.

    Args:
        form: `mixture`: D(p_S, sum_k w_k p_k), the divergence from the mean of the probabilities; `sum`: sum_k w_k D(p_S, p_k).
        shares: [K], each positive, their sum 1 up to rounding.

    Raises:
        ValueError: a share that is not positive, or another sum.
    """

    form: BlendForm
    shares: Sequence[float]

    def __post_init__(self) -> None:
        if min(self.shares, default=0.0) <= 0 or abs(sum(self.shares) - 1.0) > 1e-6:
            raise ValueError(f"shares={tuple(self.shares)}: must be positive and sum to 1; divide weights by their sum")


def blended_rows(
    student_logits: Tensor, teacher_logits: Iterable[Tensor], blend: Blend, *, temperature: float, **how: Any
) -> tuple[Tensor, Tensor | None]:
    """`row_statistics` of a blend of teachers: its statistics, and its gradient by the student's logits.

    The gradient of a mixture is that of one teacher with the mixture's log-probabilities: the teachers get none, so nothing else
    of the row kernel's formulas changes. Of a sum every statistic and the gradient are the shares' mean of those of each teacher, the
    teacher's entropy and log-probability among them; a policy gradient, which no teacher enters, is its own mean.

    Args:
        student_logits: [C, V] float32 or float64, before the temperature.
        teacher_logits: of each teacher in the order of the shares [C, V], same dtype; each is asked for when the one before it
            has been used, so that logits of one teacher are there at a time.
        temperature, how: as of `row_statistics`, without `reduce`.
    """

    def rows(logits: Tensor) -> tuple[Tensor, Tensor | None]:
        return row_statistics(student_logits, logits, temperature=temperature, **how)

    if len(blend.shares) == 1:
        [logits] = teacher_logits
        return rows(logits)
    if blend.form == "mixture":
        # A distribution's log-probabilities times the temperature are logits of it.
        return rows(mixed_log_probs(teacher_logits, blend.shares, temperature).mul_(temperature))
    total: tuple[Tensor, Tensor | None] | None = None
    for share, logits in zip(blend.shares, teacher_logits, strict=True):
        statistics, gradient = rows(logits)
        statistics *= share
        if gradient is not None:
            gradient *= share
        if total is not None:
            statistics += total[0]
            gradient = None if gradient is None or total[1] is None else gradient.add_(total[1])
        total = statistics, gradient
    assert total is not None  # a blend has a share
    return total


def mixed_log_probs(teacher_logits: Iterable[Tensor], shares: Sequence[float], temperature: float) -> Tensor:
    """[C, V] log sum_k w_k softmax(logits_k / temperature), summed as logarithms: no probability that a teacher has is lost to 0."""
    mixed: Tensor | None = None
    for share, logits in zip(shares, teacher_logits, strict=True):
        own = tempered_log_probs(logits, temperature).add_(math.log(share))
        mixed = own if mixed is None else torch.logaddexp(mixed, own, out=mixed)
    assert mixed is not None
    return mixed
