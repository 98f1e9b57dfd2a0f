"""What every form of the divergence from hidden states returns."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class DivergenceOutput(NamedTuple):
    """Loss sum (with a graph), per-token outputs (detached, float32 or float64, in nats), and a report."""

    loss_sum: Tensor
    """Scalar: sum over tokens of weight times divergence, and of weight times policy loss where there is one. The caller divides
    once, by the global token count."""
    divergence: Tensor
    """[T]"""
    student_entropy: Tensor
    """[T]"""
    teacher_entropy: Tensor
    """[T]"""
    student_log_prob: Tensor | None
    """[T] log p_S of `token_ids` at the loss's temperature; None without token ids."""
    teacher_log_prob: Tensor | None
    """[T] log p_T of `token_ids` at the loss's temperature; None without token ids."""
    nonfinite: Tensor
    """[T] bool: rows with a nan or an infinity on either side. But for the plain form, their outputs, loss and gradient are 0."""
    precision: str
    """How logits were stored: fp16, fp32 (fused form), or the computing dtype."""
    expected_error: float
    """Of the logits' gradient from storing logits and gradient: ||error|| / ||gradient|| over all tokens together as it is
    expected of independent roundings, from every 16th of them; 0 without a gradient, and but for the fused form. It is no
    bound: with 6 % of the rows at odds 3.8e-3 was measured where it said 1.7e-3, with 1 % of weight 0.001 in fp16 5.7e-2
    where it said 2.7e-4, and a token whose own gradient is tiny beside the others' (a nearly solved one) can be off by a
    fifth of it."""
    policy_loss: Tensor | None = None
    """[T] of a policy gradient, without its weights; None without one."""
    policy_slope: Tensor | None = None
    """[T] its derivative by `student_log_prob`, which is 0 where the loss is clipped."""

    @property
    def scored_divergence(self) -> Tensor:
        """[T] the divergence, nan in the rows of `nonfinite`: what tokens are chosen by."""
        return self.divergence.masked_fill(self.nonfinite, torch.nan)

    @classmethod
    def joined(cls, parts: Sequence["DivergenceOutput"], places: Sequence[Tensor]) -> "DivergenceOutput":
        """The output of all tokens from those of parts that share none.

        Args:
            parts: at least one, all with token ids or all without.
            places: [T_i] int64 for each part: where its tokens lie among all of them.
        """
        order = torch.cat(list(places)).argsort()

        def tokens(name: str) -> Any:
            values = [value for part in parts if (value := getattr(part, name)) is not None]
            return torch.cat(values)[order] if values else None

        per_token = (
            "divergence",
            "student_entropy",
            "teacher_entropy",
            "student_log_prob",
            "teacher_log_prob",
            "nonfinite",
            "policy_loss",
            "policy_slope",
        )
        return parts[0]._replace(
            loss_sum=torch.stack([part.loss_sum for part in parts]).sum(),
            precision=next((part.precision for part in parts if part.precision == "fp32"), parts[0].precision),
            expected_error=max(part.expected_error for part in parts),
            **{name: tokens(name) for name in per_token},
        )

    @classmethod
    def of(
        cls,
        loss_sum: Tensor,
        statistics: Tensor,
        nonfinite: Tensor,
        token_ids: Tensor | None,
        vocab: int,
        *,
        precision: str = "",
        expected_error: float = 0.0,
    ) -> "DivergenceOutput":
        """From statistics of `row_statistics`: [5, T], [3, T] without ids, [7, T] with a policy gradient.

        Args:
            vocab: an id outside [0, vocab) has a log-probability of -inf.
            precision: by default the statistics' dtype.
        """
        divergence, student_entropy, teacher_entropy = statistics[:3]
        student_log_prob = teacher_log_prob = None
        if token_ids is not None:
            outside = (token_ids < 0) | (token_ids >= vocab)
            student_log_prob, teacher_log_prob = statistics[3:5].masked_fill(outside, -torch.inf)
        policy_loss, policy_slope = statistics[5:] if len(statistics) > 5 else (None, None)
        return cls(
            loss_sum,
            divergence,
            student_entropy,
            teacher_entropy,
            student_log_prob,
            teacher_log_prob,
            nonfinite,
            precision or str(statistics.dtype).removeprefix("torch."),
            expected_error,
            policy_loss,
            policy_slope,
        )
