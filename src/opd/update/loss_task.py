"""The task that trains, or reads statistics: one weight per token and term, and the head's call of the loss with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from opd.losses import HiddenTargets, Loss, Output, Weights, head_loss, token_log_probs, unshared_mass
from opd.update.teacher_cache import Fetch

Slopes = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Log-probabilities [T] of a micro-batch's tokens -> its loss, and the derivatives [T] of it by them."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A model's hidden states at the tokens of a micro-batch, and its head [V, d].

    Args:
        name, rows, tokens: of several teachers: its name, its rows' places in the micro-batch, and its tokens [T_i] int64.
    """

    hidden: Fetch
    weight: Tensor
    name: str = ""
    rows: tuple[int, ...] = ()
    tokens: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class LossTask:
    """Compute the loss of the tokens at `positions` inside the head's forward.

    Args:
        positions, token_ids, token_rows: [T] int64: places in the flattened input, the tokens predicted there, and their rows.
        policy_inputs: [T] or [T, n], of the policy loss.
        old_log_probs: [T]. None means the current ones.
        slopes: the derivative of a loss of the whole micro-batch, which costs another pass through the head.
        reference: the model of the divergence. parts: several teachers' models, in its place.
        own: [M] bool, the tokens of M that this rank holds, where ranks share a sequence. None means all.
        watch: further statistics. valid_vocab: the entries that both models have. None means all.
        student_vocab, teacher_vocab: the entries of each tokenizer. If more than `valid_vocab`, the statistics have the
            probability of the rest: `unshared_student`, `unshared_teacher`.
    """

    positions: Tensor
    token_ids: Tensor
    token_rows: Tensor
    weights: Weights
    loss: Loss
    policy_inputs: Tensor | None = None
    old_log_probs: Tensor | None = None
    slopes: Slopes | None = None
    reference: Reference | None = None
    parts: tuple[Reference, ...] = ()
    own: Tensor | None = None
    watch: tuple[str, ...] = ()
    chunk: int | None = None
    workspace_gib: float | None = None
    valid_vocab: int | None = None
    student_vocab: int = 0
    teacher_vocab: int = 0

    def to(self, device: torch.device) -> LossTask:
        """Return the task with its tensors on a device."""

        def moved(value: Any) -> Any:
            if isinstance(value, Tensor):
                return value.to(device, non_blocking=True)
            if isinstance(value, Weights):
                return Weights(*map(moved, value))
            return value

        parts = tuple(replace(part, tokens=moved(part.tokens)) for part in self.parts)
        return replace(self, **{each.name: moved(getattr(self, each.name)) for each in fields(self)} | {"parts": parts})

    def output(self, hidden: Tensor, weight: Tensor) -> Output:
        """Return the loss and statistics of the student's `hidden` [T, d] through its whole head `weight` [V, d]."""
        if self.parts:
            places = [part.tokens for part in self.parts if part.tokens is not None]
            outputs = [
                self.of(part).output(hidden[tokens], weight) for part, tokens in zip(self.parts, places, strict=True)
            ]
            return Output.joined(outputs, places)
        sizes = {"chunk": self.chunk, "workspace_gib": self.workspace_gib, "valid_vocab": self.valid_vocab}
        slopes = None
        if self.slopes is not None:
            current = token_log_probs(
                hidden.detach(), weight, self.token_ids, temperature=self.loss.temperature, **sizes
            )
            _, slopes = self.slopes(current)
        shown = self.reference
        targets = None if shown is None else HiddenTargets(shown.hidden.ready(), shown.weight)
        output = head_loss(
            hidden,
            weight,
            self.token_ids,
            self.weights,
            self.loss,
            targets=targets,
            advantages=self.policy_inputs,
            old_log_probs=self.old_log_probs,
            slopes=slopes,
            watch=self.watch,
            **sizes,  # type: ignore[arg-type]  # each has its own type
        )
        self._note_unshared(output, "student", self.student_vocab, hidden, weight, "log_prob")
        if targets is not None:
            self._note_unshared(output, "teacher", self.teacher_vocab, *targets, "teacher_log_prob")
        return output

    def of(self, part: Reference) -> LossTask:
        """Return the task of one part's tokens alone."""
        tokens = part.tokens
        assert tokens is not None
        return replace(
            self,
            parts=(),
            positions=self.positions[tokens],
            token_ids=self.token_ids[tokens],
            token_rows=self.token_rows[tokens] if len(self.token_rows) else self.token_rows,
            weights=self.weights.at(tokens),
            policy_inputs=None if self.policy_inputs is None else self.policy_inputs[tokens],
            old_log_probs=None if self.old_log_probs is None else self.old_log_probs[tokens],
            reference=part,
        )

    def _note_unshared(
        self, output: Output, side: str, entries: int, hidden: Tensor, weight: Tensor, of_token: str
    ) -> None:
        """Add the probability of a model's tokens that the other model lacks to the statistics."""
        if self.valid_vocab is None or entries <= self.valid_vocab:
            return
        mass = unshared_mass(
            hidden,
            weight,
            shared=self.valid_vocab,
            entries=entries,
            token_ids=self.token_ids,
            log_prob=output.statistics[of_token],
            temperature=self.loss.temperature,
        )
        output.statistics[f"unshared_{side}"] = mass.masked_fill(output.statistics["nonfinite"], 0.0)
