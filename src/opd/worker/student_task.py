"""Phase 2 of an update: what the student's head has to compute of each micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.workers.config import ActorConfig

from opd.batch import RolloutRows
from opd.config import OpdAgentSpec, OpdSpec
from opd.config.algorithm import LossType, Policy, Stage
from opd.config.run_config import RunFacts
from opd.importance import scored_divergence
from opd.importance.stages import Weights
from opd.losses import DivergenceKind, PolicyTerm, token_weights
from opd.losses.policy import TokenLoss
from opd.worker.head import DivergenceTask, EntropyTask, LogProbTask
from opd.worker.reading import trained_positions
from opd.worker.teacher_phase import TeacherStates
from opd.worker.ulysses import Slice


def policy_loss(policy: Policy) -> TokenLoss:
    """PPO's clipped loss with the dual clip, verl's `vanilla`, token by token.

    verl returns sums only. A sum of masked losses is linear in the mask: its derivative by the mask is each token's loss.
    """
    config = ActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio=policy.clip_ratio_low,
        clip_ratio_low=policy.clip_ratio_low,
        clip_ratio_high=policy.clip_ratio_high,
        clip_ratio_c=policy.clip_ratio_c,
        loss_agg_mode="token-sum",
    )
    loss_of = get_policy_loss_fn("vanilla")

    def of_tokens(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            current = log_probs.detach().requires_grad_()
            mask = torch.ones_like(current, requires_grad=True)
            total, _ = loss_of(
                old_log_prob=old_log_probs.detach(),
                log_prob=current,
                advantages=advantages,
                response_mask=mask,
                loss_agg_mode=config.loss_agg_mode,
                config=config,
            )
            losses, slopes = torch.autograd.grad(total, (mask, current))
        return losses, slopes

    return of_tokens


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
    weights: Weights
    policy_loss: TokenLoss | None = None
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
    def scored_kind(self) -> DivergenceKind | None:
        """The divergence that tokens are chosen by; None: by none."""
        selection = self.spec.opd.importance.tokens
        return scored_divergence(selection.score, self.loss_type) if selection.needs_teacher else None

    def entropy(self, positions: torch.Tensor) -> EntropyTask:
        """The task that scores the tokens at `positions` by the student alone."""
        return EntropyTask(
            positions=positions,
            temperature=self.spec.rollout.temperature,
            chunk_size=self.spec.opd.chunk_size,
            valid_vocab=self.facts.valid_vocab,
            workspace_gib=self.spec.opd.workspace_gib,
        )

    def log_probs(self, positions: torch.Tensor, token_ids: torch.Tensor) -> LogProbTask:
        """The task that tells the student's log-probabilities of the tokens at `positions`."""
        return LogProbTask(
            positions=positions,
            token_ids=token_ids,
            temperature=self.spec.rollout.temperature,
            chunk_size=self.spec.opd.chunk_size,
            valid_vocab=self.facts.valid_vocab,
        )

    def divergence(self, micro_batch: TensorDict, starts: torch.Tensor, own: Slice | None) -> DivergenceTask:
        """The task whose output is trained on; arguments as of `opd.worker.engines.TaskBuilder`."""
        return self._task(micro_batch, starts, own, trains=True)

    def scoring(self, micro_batch: TensorDict, starts: torch.Tensor, own: Slice | None) -> DivergenceTask:
        """The task that scores tokens by the divergence; it needs no more of the rows than `opd.worker.reading.READ`."""
        return self._task(micro_batch, starts, own, trains=False)

    def _task(
        self, micro_batch: TensorDict, starts: torch.Tensor, own: Slice | None, *, trains: bool
    ) -> DivergenceTask:
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
        return DivergenceTask(
            positions=found.flat_index,
            token_ids=found.token_ids,
            token_rows=found.row,
            token_weights=token_weights(
                found.mask, row_index=found.row, row_weights=row_weights * self.weights.divergence
            ),
            **teacher,
            policy=self._policy_term(micro_batch, found.row, policy_weights, is_own) if trains else None,
            kind=self.loss_type,
            top_k=opd.top_k or 0,
            beta=self.stage.beta or 0.0,  # only a jsd has one, and reads it
            temperature=self.spec.rollout.temperature,
            chunk_size=opd.chunk_size,
            valid_vocab=facts.valid_vocab,
            student_vocab=facts.student_vocab,
            teacher_vocab=facts.teacher_vocab,
            workspace_gib=opd.workspace_gib,
            own=is_own,
        )

    def _policy_term(
        self, micro_batch: TensorDict, token_rows: torch.Tensor, row_weights: torch.Tensor, is_own: torch.Tensor | None
    ) -> PolicyTerm | None:
        """The policy gradient on a micro-batch's tokens; None where the step has none.

        Args:
            token_rows: [N] int64, each token's row. row_weights: [B]
            is_own: [M] bool, which of the trained tokens the N are; None: all.
        """
        if self.policy_loss is None or not self.weights.policy:
            return None
        old = None
        if self.old_log_probs is not None:
            old = torch.cat([self.old_log_probs[row] for row in micro_batch["opd_row"].tolist()])
            old = old if is_own is None else old[is_own]
        return PolicyTerm(
            token_loss=self.policy_loss,
            advantages=micro_batch["advantage"][token_rows],
            token_weights=self.weights.policy * row_weights[token_rows],
            old_log_probs=old,
        )
