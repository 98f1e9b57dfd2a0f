"""Phase 2 of an update: what the student's head has to compute of each micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from tensordict import TensorDict

from opd.batch import LossPositions, RolloutRows
from opd.config import OpdAgentSpec, OpdSpec
from opd.config.algorithm import LossType, Policy, Stage
from opd.config.run_config import RunFacts
from opd.importance import scored_divergence
from opd.importance.stages import Weights as StageWeights
from opd.losses import Loss, Weights, token_weights
from opd.losses.terms import PolicyLoss
from opd.worker.loss_task import LossTask
from opd.worker.policy_loss import Clips, vanilla
from opd.worker.reading import trained_positions
from opd.worker.teacher_phase import TeacherStates
from opd.worker.ulysses import Slice


def policy_loss(policy: Policy) -> PolicyLoss:
    """Return PPO's clipped loss with the dual clip, token by token."""
    return partial(vanilla, clips=Clips(policy.clip_ratio_low, policy.clip_ratio_high, policy.clip_ratio_c))


@dataclass(frozen=True, kw_only=True)
class StudentTasks:
    """Makes the head's tasks of one step.

    Args:
        stage, weights: the step's, and those of the two parts of its loss.
        policy_loss: of each token; None: the run has no policy gradient.
        old_log_probs: of each row's trained tokens, before the first update of a step that has several; None: it has one, or no
            policy gradient.
        rows: this rank's, with the masks of what is trained on.
        states: what the teachers have read of them.
        choice_seed: by which tokens are drawn.
    """

    spec: OpdSpec | OpdAgentSpec
    facts: RunFacts
    stage: Stage
    weights: StageWeights
    policy_loss: PolicyLoss | None = None
    old_log_probs: Sequence[torch.Tensor] | None = None
    rows: RolloutRows
    states: TeacherStates
    choice_seed: int

    @property
    def loss_type(self) -> LossType:
        loss_type = self.stage.loss_type
        assert loss_type is not None  # `Schedule` fills it in
        return loss_type

    @property
    def scored_kind(self) -> LossType | None:
        """The divergence that tokens are chosen by; None: by none."""
        selection = self.spec.opd.importance.tokens
        return scored_divergence(selection.score, self.loss_type) if selection.needs_teacher else None

    def loss_of(self, kind: LossType) -> Loss:
        """Return the loss with a divergence; the parameters are of the stage's own divergence only."""
        params = dict(self.stage.loss_params) if kind == self.loss_type else {}
        if kind == self.loss_type == "jsd":
            params["beta"] = self.stage.beta or 0.0
        if kind == self.loss_type == "topk_reverse_kl":
            params["top_k"] = self.spec.opd.top_k or 0
        return Loss(kind, params, self.spec.rollout.temperature, self.policy_loss)

    def entropy(self, found: LossPositions) -> LossTask:
        """Return the task that scores tokens by the student alone."""
        return self._reading(found, watch=("entropy",))

    def log_probs(self, found: LossPositions) -> LossTask:
        """Return the task that reads the student's log-probabilities of tokens."""
        return self._reading(found, watch=())

    def _reading(self, found: LossPositions, *, watch: tuple[str, ...]) -> LossTask:
        return LossTask.reading(
            found,
            temperature=self.spec.rollout.temperature,
            watch=watch,
            chunk=self.spec.opd.chunk_size,
            valid_vocab=self.facts.valid_vocab,
            workspace_gib=self.spec.opd.workspace_gib,
        )

    def divergence(self, micro_batch: TensorDict, starts: torch.Tensor, own: Slice | None) -> LossTask:
        """The task whose output is trained on; arguments as of `opd.worker.engines.TaskBuilder`."""
        return self._task(micro_batch, starts, own, trains=True)

    def scoring(self, micro_batch: TensorDict, starts: torch.Tensor, own: Slice | None) -> LossTask:
        """The task that scores tokens by the divergence; it needs no more of the rows than `opd.worker.reading.READ`."""
        return self._task(micro_batch, starts, own, trains=False)

    def _task(self, micro_batch: TensorDict, starts: torch.Tensor, own: Slice | None, *, trains: bool) -> LossTask:
        opd, facts = self.spec.opd, self.facts
        mine, found = trained_positions(self.rows, micro_batch, starts)
        # Asked for here, before the backbone's forward is queued: copies from the host run beside it.
        numbers, is_own = micro_batch["opd_row"].tolist(), None
        teacher = self.states.for_head(numbers, mine.num_trained_tokens, found.flat_index, own)
        if own is not None:
            found, is_own = own.select(found)
        row_weights = mine.sample_weights
        assert row_weights is not None  # `OPDWorker.update_opd` puts them on every batch
        policy_weights = torch.ones_like(row_weights)
        if trains and opd.loss_agg_mode == "seq-mean-token-mean":
            counts = torch.stack([mask.sum() for mask in micro_batch["loss_mask"].unbind()])
            row_weights, policy_weights = (w / counts.clamp(min=1) for w in (row_weights, policy_weights))
        divergence = token_weights(found.mask, row_index=found.row, row_weights=row_weights * self.weights.divergence)
        has_policy = trains and self.policy_loss is not None and bool(self.weights.policy)
        return LossTask(
            positions=found.flat_index,
            token_ids=found.token_ids,
            token_rows=found.row,
            weights=Weights(
                divergence=divergence if trains else None,
                policy=self.weights.policy * policy_weights[found.row] if has_policy else None,
            ),
            loss=self.loss_of(self.loss_type),
            policy_inputs=micro_batch["advantage"][found.row] if has_policy else None,
            old_log_probs=self._old_log_probs(numbers, is_own) if has_policy else None,
            **teacher,
            watch=("entropy", "teacher_entropy"),
            chunk=opd.chunk_size,
            valid_vocab=facts.valid_vocab,
            student_vocab=facts.student_vocab,
            teacher_vocab=facts.teacher_vocab,
            workspace_gib=opd.workspace_gib,
            own=is_own,
        )

    def _old_log_probs(self, numbers: Sequence[int], is_own: torch.Tensor | None) -> torch.Tensor | None:
        """Return the old log-probabilities of a micro-batch's tokens. None means the current ones.

        Args:
            numbers: of the micro-batch's rows. is_own: [M] bool, which of the trained tokens this rank has; None means all.
        """
        if self.old_log_probs is None:
            return None
        old = torch.cat([self.old_log_probs[row] for row in numbers])
        return old if is_own is None else old[is_own]
