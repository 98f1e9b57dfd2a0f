"""The loss of a step on one rank: a weight per trained token and term, from which each micro-batch's task is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self

import torch
from tensordict import TensorDict
from torch import Tensor

from opd.batch.rows import LossPositions, RolloutRows, loss_positions
from opd.experiment import OpdAgentSpec, OpdSpec
from opd.experiment.algorithm import LossType, Stage
from opd.losses import Loss, Output, Weights
from opd.losses.terms import PolicyLoss
from opd.update.attention import Slice
from opd.update.head import LossTask, Slopes
from opd.update.policy_loss import Clips, vanilla
from opd.update.signs import Counts, neighbour_signs, preference_signs, token_signs
from opd.update.step_metrics import micro_batch_counts, policy_counts
from opd.weights.tokens import scored_divergence

if TYPE_CHECKING:
    from opd.update.teachers import TeacherStates
    from opd.update.token_view import TokenView


def trained_positions(rows: RolloutRows, numbers: Sequence[int], starts: Tensor) -> LossPositions:
    """Return the hidden states that predict the trained tokens of the numbered rows."""
    return loss_positions(rows.select(numbers), row_starts=starts).trained()


@dataclass(frozen=True, kw_only=True)
class HeadLoss:
    """A loss that the student's head computes. Without weights it reads statistics; subclasses count more of a step.

    Args:
        rows: this rank's B rows with T trained tokens.
        weights, inputs, old_log_probs: [T] on the host; inputs are the policy loss's, also [T, n].
        states: what other models have read of the rows.
        over_rows: the update's rows with trained tokens divide its sum, not their tokens.
        options: further fields of `LossTask`.
    """

    rows: RolloutRows
    loss: Loss
    weights: Weights = field(default_factory=Weights)
    inputs: Tensor | None = None
    old_log_probs: Tensor | None = None
    states: TeacherStates | None = None
    over_rows: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def _places(self) -> tuple[Tensor, ...]:
        counts = self.rows.num_trained_tokens.tolist()
        places: tuple[Tensor, ...] = torch.arange(sum(counts)).split(counts)
        return places

    def task(self, micro_batch: TensorDict, starts: Tensor, own: Slice | None) -> LossTask:
        """Return the head's task for a micro-batch; arguments as of `HeadEngine.run`."""
        numbers, mask = micro_batch["opd_row"].tolist(), None
        found = trained_positions(self.rows, numbers, starts)
        tokens = torch.cat([self._places[number] for number in numbers])
        # Copies from the host begin here and run during the backbone's forward.
        references = self.states.for_head(numbers, found, own) if self.states else ()
        slopes = self.slopes(micro_batch, tokens)
        if own is not None:
            found, mask = own.select(found)
            tokens = tokens[mask]
        return LossTask(
            positions=found.flat_index,
            token_ids=found.token_ids,
            token_rows=found.row,
            weights=self.weights.at(tokens),
            loss=self.loss,
            policy_inputs=None if self.inputs is None else self.inputs[tokens],
            old_log_probs=None if self.old_log_probs is None else self.old_log_probs[tokens],
            slopes=slopes,
            references=references,
            own=mask,
            **self.options,
        )

    def keeping(self, kept: Tensor) -> Self:
        """Return the loss of some trained tokens; `kept` is [T] bool on the host."""
        mask = self.rows.response_mask.clone()
        mask[self.rows.response_mask] = kept
        inputs = None if self.inputs is None else self.inputs[kept]
        return replace(self, rows=replace(self.rows, response_mask=mask), weights=self.weights.at(kept), inputs=inputs)

    def slopes(self, micro_batch: TensorDict, tokens: Tensor) -> Slopes | None:
        """Return the derivative of a loss over whole rows of these tokens. None means that every token has a loss of its own."""
        return None

    def divisor(self, micro_batch: TensorDict) -> float:
        """Return the number, over all ranks, by which the update's sum is divided."""
        return float(micro_batch["batch_num_rows" if self.over_rows else "batch_num_tokens"])

    def metrics(self, micro_batch: TensorDict, task: LossTask, output: Output, *, first_update: bool) -> Counts:
        """Return the counts of a micro-batch; the host does not wait for the device."""
        return {"sum/loss": output.loss.detach(), "sum/tokens": float(len(task.token_ids))}


def loss_of(spec: OpdSpec | OpdAgentSpec, stage: Stage, kind: LossType) -> Loss:
    """Return the loss with a divergence; the parameters are of the stage's own divergence only."""
    params = dict(stage.loss_params) if kind == stage.loss_type else {}
    if kind == stage.loss_type == "jsd":
        params["beta"] = stage.beta or 0.0
    if kind == stage.loss_type == "topk_reverse_kl":
        params["top_k"] = spec.opd.top_k or 0
    policy: PolicyLoss | None = None
    if spec.opd.has_policy:
        keys = spec.opd.policy
        policy = partial(vanilla, clips=Clips(keys.clip_ratio_low, keys.clip_ratio_high, keys.clip_ratio_c))
    return Loss(kind, params, spec.rollout.temperature, policy)


def is_sampled(spec: OpdSpec | OpdAgentSpec, stage: Stage) -> bool:
    """Return True if a step's tokens come from the whole distribution of the weights that the step begins with."""
    # Under the schedule carry, earlier weights made many tokens.
    is_of_these_weights = stage.rollouts == "student" and spec.rollout.schedule == "strict"
    return is_of_these_weights and not spec.rollout.is_truncated


@dataclass(frozen=True, kw_only=True)
class DivergenceLoss(HeadLoss):
    """The loss of a distillation's step.

    Args:
        policy_weight: of the policy loss in the loss. 0 means that the step has none.
        states: what the teachers have read of the rows.
        view: takes note of tokens for people. None means that no one asked.
        nonfinite: filled with each micro-batch's row numbers, each token's row, and whether its loss is not finite.
    """

    spec: OpdSpec | OpdAgentSpec
    stage: Stage
    policy_weight: float
    states: TeacherStates
    view: TokenView | None
    nonfinite: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)

    def scoring(self) -> HeadLoss:
        """Return the pass that scores tokens by entropy, and by the divergence of `opd.importance.tokens` where it needs one."""
        selection = self.spec.opd.importance.tokens
        assert self.stage.loss_type is not None  # `Schedule` fills it in
        if selection.needs_teacher:
            loss = loss_of(self.spec, self.stage, scored_divergence(selection.score, self.stage.loss_type))
            return HeadLoss(rows=self.rows, loss=loss, states=self.states, options=self.options)
        loss, options = Loss(temperature=self.loss.temperature), {**self.options, "watch": ("entropy",)}
        return HeadLoss(rows=self.rows, loss=loss, options=options)

    def metrics(self, micro_batch: TensorDict, task: LossTask, output: Output, *, first_update: bool) -> Counts:
        several = self.spec.routed
        counts = micro_batch_counts(micro_batch, task, output, first_update=first_update, teachers=several)
        if self.spec.trainer.monitor:
            drawn = first_update and is_sampled(self.spec, self.stage)
            counts |= token_signs(task, output, is_sampled=drawn) | neighbour_signs(task)
            if task.own is None and "row_score" in micro_batch:
                counts |= preference_signs(task.token_rows, micro_batch["row_score"], output)
        if task.weights.policy is not None:
            counts |= policy_counts(task, output, weight=self.policy_weight)
        if self.view is not None:
            self.view.trained(micro_batch["opd_row"].tolist(), task, output)
        self.nonfinite.append((micro_batch["opd_row"], task.token_rows, output.statistics["nonfinite"]))
        return counts

    @property
    def nonfinite_rows(self) -> set[int]:
        """Return the numbers of the rows that have a token whose loss is not finite."""
        rows = (numbers[token_rows.cpu()[is_one.cpu()]] for numbers, token_rows, is_one in self.nonfinite)
        return {row for of_batch in rows for row in of_batch.unique().tolist()}
