"""The loss of a distillation step on one rank: what the student's head computes of each micro-batch, and its counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from opd.batch import RolloutRows
from opd.experiment import OpdAgentSpec, OpdSpec
from opd.experiment.algorithm import LossType, Policy, Stage
from opd.experiment.run_config import RunFacts
from opd.losses import Loss, Output, Weights
from opd.losses.terms import PolicyLoss
from opd.update.counts import Counts
from opd.update.engines import HeadLoss
from opd.update.loss_task import LossTask
from opd.update.policy_loss import Clips, vanilla
from opd.update.reading import trained_positions
from opd.update.signs import neighbour_signs, preference_signs, token_signs
from opd.update.step_metrics import micro_batch_counts, no_teacher_counts, policy_counts
from opd.update.teacher_phase import TeacherStates
from opd.update.token_view import TokenView
from opd.update.ulysses import Slice
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


@dataclass(frozen=True, kw_only=True)
class RowWeights:
    """The weight of each trained token in each term, by its row.

    Args:
        divergence, policy: [B]. None means that the loss lacks the policy gradient.
        advantages: [B]
    """

    divergence: Tensor
    policy: Tensor | None = None
    advantages: Tensor | None = None

    @classmethod
    def of(cls, data: TensorDict, weights: StageWeights, *, has_policy: bool, over_row: bool) -> RowWeights:
        """Return the weights of a step's rows.

        Args:
            weights: of the two terms. over_row: a row counts by the mean of its tokens.
        """
        divergence, policy = data["sample_weights"], torch.ones_like(data["sample_weights"])
        if over_row:
            counts = torch.stack([mask.sum() for mask in data["loss_mask"].unbind()]).clamp(min=1)
            divergence, policy = divergence / counts, policy / counts
        if not has_policy:
            return cls(divergence=divergence * weights.divergence)
        return cls(
            divergence=divergence * weights.divergence, policy=weights.policy * policy, advantages=data["advantage"]
        )

    @property
    def are_needed(self) -> Tensor:
        """Return [B] bool, False for rows that train nothing."""
        needed = self.divergence != 0
        return needed if self.policy is None else needed | (self.policy != 0)

    def at(self, rows: Tensor) -> tuple[Weights, Tensor | None]:
        """Return the weights and advantages of tokens; `rows` [T] int64 are their rows."""
        weights, policy, advantages = (
            None if each is None else each.to(rows.device)[rows]
            for each in (self.divergence, self.policy, self.advantages)
        )
        return Weights(divergence=weights, policy=policy), advantages


@dataclass(frozen=True, kw_only=True)
class DivergenceLoss(HeadLoss):
    """The loss of a step.

    Args:
        policy_weight: of the policy loss in the loss. 0 means that the step has none.
        rows: this rank's, with the masks of what is trained on.
        weights: of the rows' tokens.
        states: what the teachers have read of them.
        names: of the rows, for people.
        view: takes note of tokens for people. None means that no one asked.
        old_log_probs: of each row's trained tokens, before the first of several updates. None means one update, or no policy gradient.
        nonfinite: filled with each micro-batch's row numbers, each token's row, and whether its loss is not finite.
    """

    spec: OpdSpec | OpdAgentSpec
    facts: RunFacts
    stage: Stage
    policy_weight: float
    rows: RolloutRows
    weights: RowWeights
    states: TeacherStates
    names: Sequence[str]
    view: TokenView | None
    old_log_probs: Sequence[Tensor] | None = None
    nonfinite: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)

    @property
    def over_rows(self) -> bool:  # type: ignore[override]  # the base class has a plain value
        """Return True if the sum is divided by the rows and not by the tokens of an update."""
        return self.spec.opd.loss_agg_mode != "token-mean"

    def loss_of(self, kind: LossType) -> Loss:
        """Return the loss with a divergence; the parameters are of the stage's own divergence only."""
        params = dict(self.stage.loss_params) if kind == self.stage.loss_type else {}
        if kind == self.stage.loss_type == "jsd":
            params["beta"] = self.stage.beta or 0.0
        if kind == self.stage.loss_type == "topk_reverse_kl":
            params["top_k"] = self.spec.opd.top_k or 0
        policy = policy_loss(self.spec.opd.policy) if self.spec.opd.has_policy else None
        return Loss(kind, params, self.spec.rollout.temperature, policy)

    def task(self, micro_batch: TensorDict, starts: Tensor, own: Slice | None) -> LossTask:
        mine, found = trained_positions(self.rows, micro_batch, starts)
        # Asked for here, before the backbone's forward is queued: copies from the host run during it.
        numbers, is_own = micro_batch["opd_row"].tolist(), None
        teacher = self.states.for_head(numbers, mine.num_trained_tokens, found.flat_index, own)
        old = None if self.old_log_probs is None else torch.cat([self.old_log_probs[row] for row in numbers])
        if own is not None:
            found, is_own = own.select(found)
            old = None if old is None else old[is_own]
        weights, advantages = self.weights.at(micro_batch["opd_row"][found.row])
        assert self.stage.loss_type is not None  # `Schedule` fills it in
        return LossTask(
            positions=found.flat_index,
            token_ids=found.token_ids,
            token_rows=found.row,
            weights=weights,
            loss=self.loss_of(self.stage.loss_type),
            policy_inputs=advantages,
            old_log_probs=old,
            **teacher,
            watch=("entropy", "teacher_entropy"),
            **self.sizes,
            student_vocab=self.facts.student_vocab,
            teacher_vocab=self.facts.teacher_vocab,
            own=is_own,
        )

    @property
    def sizes(self) -> dict[str, Any]:
        """Return the options of every pass through the head."""
        opd = self.spec.opd
        return {"chunk": opd.chunk_size, "valid_vocab": self.facts.valid_vocab, "workspace_gib": opd.workspace_gib}

    def scoring(self, micro_batch: TensorDict, starts: Tensor, own: Slice | None) -> LossTask:
        """Return the task that scores tokens by the divergence of `opd.importance.tokens`, without a gradient."""
        assert self.stage.loss_type is not None
        kind = scored_divergence(self.spec.opd.importance.tokens.score, self.stage.loss_type)
        task = self.task(micro_batch, starts, own)
        return replace(task, loss=self.loss_of(kind), weights=Weights(), policy_inputs=None)

    def divisor(self, micro_batch: TensorDict) -> float:
        return float(micro_batch["batch_num_rows" if self.over_rows else "batch_num_tokens"])

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
