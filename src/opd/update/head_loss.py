"""The loss of a step on one rank: a weight per trained token and term, from which each micro-batch's task is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, Self

import torch
from tensordict import TensorDict
from torch import Tensor

from opd.batch import LossPositions, RolloutRows, loss_positions
from opd.losses import Loss, Output, Weights
from opd.update.counts import Counts
from opd.update.loss_task import LossTask, Slopes
from opd.update.ulysses import Slice


class States(Protocol):
    """Hidden states of the models that the student is compared with."""

    def for_head(self, numbers: list[int], counts: Tensor, flat_index: Tensor, own: Slice | None) -> dict[str, Any]: ...


@dataclass(frozen=True, kw_only=True)
class HeadLoss:
    """A loss that the student's head computes. Without weights it reads statistics; subclasses say what a step counts.

    Args:
        rows: this rank's B rows with T trained tokens.
        weights, inputs, old_log_probs: [T] on the host; inputs are the policy loss's, also [T, n].
        states: what other models have read of the rows.
        options: further fields of `LossTask`.
    """

    rows: RolloutRows
    loss: Loss
    weights: Weights = field(default_factory=Weights)
    inputs: Tensor | None = None
    old_log_probs: Tensor | None = None
    states: States | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def over_rows(self) -> bool:
        """Return True if the update's rows with trained tokens must be counted, as `batch_num_rows`."""
        return False

    @cached_property
    def _places(self) -> tuple[Tensor, ...]:
        counts = self.rows.num_trained_tokens.tolist()
        places: tuple[Tensor, ...] = torch.arange(sum(counts)).split(counts)
        return places

    def task(self, micro_batch: TensorDict, starts: Tensor, own: Slice | None) -> LossTask:
        """Return the head's task for a micro-batch; arguments as of `HeadEngine.read`."""
        numbers = micro_batch["opd_row"].tolist()
        rows, found = trained_positions(self.rows, numbers, starts)
        tokens = torch.cat([self._places[number] for number in numbers])
        # Copies from the host begin here and run during the backbone's forward.
        fields = self.states.for_head(numbers, rows.num_trained_tokens, found.flat_index, own) if self.states else {}
        fields["slopes"] = self.slopes(micro_batch, rows, tokens)
        if own is not None:
            found, fields["own"] = own.select(found)
            tokens = tokens[fields["own"]]
        return LossTask(
            positions=found.flat_index,
            token_ids=found.token_ids,
            token_rows=found.row,
            weights=self.weights.at(tokens),
            loss=self.loss,
            policy_inputs=None if self.inputs is None else self.inputs[tokens],
            old_log_probs=None if self.old_log_probs is None else self.old_log_probs[tokens],
            **fields,
            **self.options,
        )

    def keeping(self, kept: Tensor) -> Self:
        """Return the loss of some trained tokens; `kept` is [T] bool on the host."""
        mask = self.rows.response_mask.clone()
        mask[self.rows.response_mask] = kept
        inputs = None if self.inputs is None else self.inputs[kept]
        return replace(self, rows=replace(self.rows, response_mask=mask), weights=self.weights.at(kept), inputs=inputs)

    def slopes(self, micro_batch: TensorDict, rows: RolloutRows, tokens: Tensor) -> Slopes | None:
        """Return the derivative of a loss over whole rows. None means that every token has a loss of its own."""
        return None

    def divisor(self, micro_batch: TensorDict) -> float:
        """Return the number, over all ranks, by which the update's sum is divided."""
        return float(micro_batch["batch_num_rows" if self.over_rows else "batch_num_tokens"])

    def metrics(self, micro_batch: TensorDict, task: LossTask, output: Output, *, first_update: bool) -> Counts:
        """Return the counts of a micro-batch; the host does not wait for the device."""
        raise NotImplementedError


def trained_positions(rows: RolloutRows, numbers: Sequence[int], starts: Tensor) -> tuple[RolloutRows, LossPositions]:
    """Return the numbered rows, and the hidden states that predict their trained tokens."""
    rows = rows.select(numbers)
    return rows, loss_positions(rows, row_starts=starts).trained()
