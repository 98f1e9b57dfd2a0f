"""The task that trains, or reads statistics: one weight per token and term, and the head's call of the loss with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from opd.batch import LossPositions
from opd.losses import HiddenTargets, Loss, Output, Weights, head_loss, token_log_probs, unshared_mass
from opd.update.teacher_cache import Fetch

Slopes = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Log-probabilities [T] of a micro-batch's tokens -> its loss, and the derivatives [T] of it by them."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A model's hidden states at the tokens of a micro-batch, possibly still on their way to the device, and its head.

    Args:
        weight: [V, d]. None means the student's own head, which adapters leave alone.
        name: the teacher's, of several.
        rows: its rows, by their places in the micro-batch, of several teachers.
        tokens: [T_i] int64, its tokens among the task's T, ascending, of several teachers. None means all.
    """

    hidden: Fetch
    weight: Tensor | None
    name: str = ""
    rows: tuple[int, ...] = ()
    tokens: Tensor | None = None

    def targets(self, own: Tensor) -> HiddenTargets:
        """Return the targets of the divergence; `own` is the student's head."""
        return HiddenTargets(self.hidden.ready(), own.detach() if self.weight is None else self.weight)


@dataclass(frozen=True, kw_only=True)
class LossTask:
    """Compute the loss of the tokens at `positions` inside the head's forward.

    Args:
        positions: [T] int64, indices into the flattened tokens of the model's input.
        token_ids: [T] int64, the tokens that the hidden states at `positions` predict.
        token_rows: [T] int64, the micro-batch's row of each token; for the counts.
        weights: one weight per token and term. None of any term reads statistics only.
        loss: the terms' functions and the temperature.
        policy_inputs: [T] or [T, n], the policy loss's inputs of each token besides its log-probabilities.
        old_log_probs: [T]. None means the current ones.
        slopes: the derivative of a loss that needs the whole micro-batch. It costs a pass of its own through the head.
        reference: the model of the divergence.
        parts: the models of the divergence, where each row has one of several; `reference` is then None.
        own: [M] bool, which of the micro-batch's M trained tokens this rank holds, where ranks share a sequence. None means all.
        watch: further statistics.
        valid_vocab: the number of entries that both models have. None means all.
        student_vocab, teacher_vocab: the entries of each model's tokenizer. Of a model that has more than `valid_vocab` the
            statistics have the probability of those: `unshared_student`, `unshared_teacher`.
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

    @classmethod
    def reading(cls, found: LossPositions, *, temperature: float, **options: Any) -> LossTask:
        """Return the task that trains nothing and reads statistics of tokens; options are further fields."""
        return cls(
            positions=found.flat_index,
            token_ids=found.token_ids,
            token_rows=found.row,
            weights=Weights(),
            loss=Loss(temperature=temperature),
            **options,
        )

    def to(self, device: torch.device) -> LossTask:
        """Return the task with its tensors on a device."""

        def moved(value: Any) -> Any:
            if isinstance(value, Tensor):
                return value.to(device, non_blocking=True)
            if isinstance(value, Weights):
                return Weights(**{name: moved(part) for name, part in vars(value).items()})
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
        targets = None if self.reference is None else self.reference.targets(weight)
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
