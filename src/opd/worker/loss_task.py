"""The task that trains: one weight per token and term, and the call of the loss that the student's head makes with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from opd.losses import HiddenTargets, Loss, Weights, head_loss, token_log_probs
from opd.worker.teacher_cache import Fetch

Slopes = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Log-probabilities [T] of a micro-batch's tokens -> its loss, and the derivatives [T] of it."""


class TrainedTokens(NamedTuple):
    """The loss of a micro-batch with a graph, and statistics [T] by name.

    A tuple, because FSDP looks for tensors with a graph in a module's output and gathers weights before their backward.
    """

    loss: Tensor
    statistics: dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A model's hidden states at the tokens of a micro-batch, possibly still on their way to the device, and its head.

    Args:
        weight: [V, d]. None means the student's own head, which adapters leave alone.
    """

    hidden: Fetch
    weight: Tensor | None

    def targets(self, own: Tensor) -> HiddenTargets:
        """Return the targets of the divergence; `own` is the student's head."""
        return HiddenTargets(self.hidden.ready(), own.detach() if self.weight is None else self.weight)


@dataclass(frozen=True, kw_only=True)
class LossTask:
    """Compute the loss of the tokens at `positions` inside the head's forward.

    Args:
        positions: [T] int64, indices into the flattened tokens of the model's input.
        token_ids: [T] int64, the tokens that the hidden states at `positions` predict.
        token_rows: [T] int64, the micro-batch's row of each token.
        weights: one weight per token and term.
        loss: the terms' functions and the temperature.
        policy_inputs: [T, n], what the policy loss reads of each token besides its log-probabilities.
        old_log_probs: [T]. None means the current ones.
        slopes: the derivative of a loss that needs the whole micro-batch; it costs a pass of its own through the head.
        reference: the model of the divergence.
        own: [M] bool, which of the micro-batch's M trained tokens this rank holds, where ranks share a sequence. None means all.
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
    own: Tensor | None = None
    watch: tuple[str, ...] = ()
    workspace_gib: float | None = None

    def output(self, hidden: Tensor, weight: Tensor) -> TrainedTokens:
        """Return the loss and statistics of the student's `hidden` [T, d] through its whole head `weight` [V, d]."""
        slopes = None
        if self.slopes is not None:
            _, slopes = self.slopes(
                token_log_probs(
                    hidden,
                    weight,
                    self.token_ids,
                    temperature=self.loss.temperature,
                    workspace_gib=self.workspace_gib,
                )
            )
        output = head_loss(
            hidden,
            weight,
            self.token_ids,
            self.weights,
            self.loss,
            targets=None if self.reference is None else self.reference.targets(weight),
            advantages=self.policy_inputs,
            old_log_probs=self.old_log_probs,
            slopes=slopes,
            watch=self.watch,
            workspace_gib=self.workspace_gib,
        )
        return TrainedTokens(output.loss, dict(output.statistics))
