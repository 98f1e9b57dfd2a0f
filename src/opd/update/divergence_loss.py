"""The loss of a distillation step on one rank: what the student's head computes of each micro-batch, and its counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from tensordict import TensorDict
from torch import Tensor

from opd.experiment import OpdAgentSpec, OpdSpec
from opd.experiment.algorithm import LossType, Policy, Stage
from opd.losses import Loss, Output
from opd.losses.terms import PolicyLoss
from opd.update.counts import Counts
from opd.update.head_loss import HeadLoss
from opd.update.loss_task import LossTask
from opd.update.policy_loss import Clips, vanilla
from opd.update.signs import neighbour_signs, preference_signs, token_signs
from opd.update.step_metrics import micro_batch_counts, no_teacher_counts, policy_counts
from opd.update.teacher_phase import TeacherStates
from opd.update.token_view import TokenView
from opd.weights import scored_divergence
from opd.weights.stages import Weights as StageWeights


def policy_loss(policy: Policy) -> PolicyLoss:
    """Return PPO's clipped loss with the dual clip, token by token."""
    return partial(vanilla, clips=Clips(policy.clip_ratio_low, policy.clip_ratio_high, policy.clip_ratio_c))


def is_sampled(spec: OpdSpec | OpdAgentSpec, stage: Stage) -> bool:
    """Return True if a step's tokens come from the whole distribution of the weights that the step begins with."""
    # Under the schedule carry, earlier weights made many tokens.
    is_of_these_weights = stage.rollouts == "student" and spec.rollout.schedule == "strict"
    return is_of_these_weights and not spec.rollout.is_truncated


def row_names(data: TensorDict) -> list[str]:
    """Return a name of each row for people: `data row 17, sample 2`, or its place in the batch."""
    if "index" not in data:
        return [f"row {number} of the batch" for number in range(len(data))]
    indices, samples = ([int(value) for value in data[name]] for name in ("index", "session_id"))
    return [f"data row {index}, sample {sample}" for index, sample in zip(indices, samples, strict=True)]


def term_weights(data: TensorDict, weights: StageWeights, *, over_row: bool) -> tuple[Tensor, Tensor]:
    """Return the weights [B] of the rows' tokens in each term; with `over_row` a row counts by the mean of its tokens."""
    divergence, policy = data["sample_weights"], torch.ones_like(data["sample_weights"])
    if over_row:
        counts = torch.stack([mask.sum() for mask in data["loss_mask"].unbind()]).clamp(min=1)
        divergence, policy = divergence / counts, policy / counts
    return divergence * weights.divergence, weights.policy * policy


def loss_of(spec: OpdSpec | OpdAgentSpec, stage: Stage, kind: LossType) -> Loss:
    """Return the loss with a divergence; the parameters are of the stage's own divergence only."""
    params = dict(stage.loss_params) if kind == stage.loss_type else {}
    if kind == stage.loss_type == "jsd":
        params["beta"] = stage.beta or 0.0
    if kind == stage.loss_type == "topk_reverse_kl":
        params["top_k"] = spec.opd.top_k or 0
    return Loss(kind, params, spec.rollout.temperature, policy_loss(spec.opd.policy) if spec.opd.has_policy else None)


@dataclass(frozen=True, kw_only=True)
class DivergenceLoss(HeadLoss):
    """The loss of a step.

    Args:
        policy_weight: of the policy loss in the loss. 0 means that the step has none.
        states: what the teachers have read of the rows.
        names: of the rows, for people.
        view: takes note of tokens for people. None means that no one asked.
        nonfinite: filled with each micro-batch's row numbers, each token's row, and whether its loss is not finite.
    """

    spec: OpdSpec | OpdAgentSpec
    stage: Stage
    policy_weight: float
    states: TeacherStates
    names: Sequence[str]
    view: TokenView | None
    nonfinite: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)

    @property
    def over_rows(self) -> bool:
        return self.spec.opd.loss_agg_mode != "token-mean"

    def scoring(self) -> HeadLoss:
        """Return the pass that scores tokens by entropy, and by the divergence of `opd.importance.tokens` where it needs one."""
        selection, options = self.spec.opd.importance.tokens, dict(self.options)
        assert self.stage.loss_type is not None  # `Schedule` fills it in
        if selection.needs_teacher:
            loss = loss_of(self.spec, self.stage, scored_divergence(selection.score, self.stage.loss_type))
            return HeadLoss(rows=self.rows, loss=loss, states=self.states, options=options)
        options["watch"] = ("entropy",)
        return HeadLoss(rows=self.rows, loss=Loss(temperature=self.loss.temperature), options=options)

    def metrics(self, micro_batch: TensorDict, task: LossTask, output: Output, *, first_update: bool) -> Counts:
        counts: Counts = dict(no_teacher_counts(self.spec.routed))  # every rank has the same, with any rows
        counts |= micro_batch_counts(micro_batch, task, output, first_update=first_update)
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
    def nonfinite_rows(self) -> set[str]:
        """Return the names of the rows that have a token whose loss is not finite."""
        rows = (numbers[token_rows.cpu()[is_one.cpu()]] for numbers, token_rows, is_one in self.nonfinite)
        return {self.names[row] for of_batch in rows for row in of_batch.unique().tolist()}
