"""The worker of GRPO: a policy loss, an entropy bonus and the KL to the model that the student began with."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.debug import marked_timer
from verl.workers.config import ActorConfig

from opd.batch.builder import rows_from_batch
from opd.batch.rows import RolloutRows
from opd.errors import Unfit
from opd.experiment import GrpoSpec
from opd.experiment.sections import Teacher
from opd.losses import Loss, Output, Weights
from opd.update.head import Counts, HeadLoss, LossTask, Slopes
from opd.update.policy_loss import TokenLoss, clip_counts, divisor_of, token_loss, token_weights, whole_loss
from opd.update.step_metrics import agreement, agreement_metrics, shared_metrics, totals
from opd.update.student import StudentWorker
from opd.update.teachers import TeacherStates, read_teachers

PER_TOKEN = ("entropy", "pg_clipfrac", "pg_clipfrac_lower", "ppo_kl")
"""Metrics that are means over the step's tokens."""
PER_UPDATE = ("loss", "pg_loss", "kl_loss", "entropy_loss")
"""Metrics that are aggregated as the loss is, and averaged over the step's updates."""


@dataclass(frozen=True, kw_only=True)
class PolicyLoss(HeadLoss):
    """The loss of a GRPO step; its inputs [T, 2] are advantages and the reference's log-probabilities.

    It has a part that is local to `tokens`, and verl's settings of the actor.
    """

    tokens: TokenLoss
    config: ActorConfig

    def divisor(self, micro_batch: TensorDict) -> float:
        return divisor_of(self.config, **_sizes(micro_batch))

    def slopes(self, micro_batch: TensorDict, tokens: Tensor) -> Slopes | None:
        if self.tokens.mode is not None:
            return None
        rows = self.rows.select(micro_batch["opd_row"].tolist())
        counts = rows.response_lens
        is_response = torch.arange(int(counts.max())) < counts[:, None]
        mask = torch.zeros_like(is_response).masked_scatter(is_response, rows.response_mask)
        assert self.policy_inputs is not None
        old = None if self.old_log_probs is None else self.old_log_probs[tokens]
        given: dict[str, Any] = {"old": old, "advantages": self.policy_inputs[tokens, 0], "sizes": _sizes(micro_batch)}
        return partial(whole_loss, config=self.config, mask=mask, **given)

    def metrics(self, micro_batch: TensorDict, task: LossTask, output: Output, *, first_update: bool) -> Counts:
        found, weights = output.statistics, task.weights.policy
        assert weights is not None
        assert task.policy_inputs is not None
        log_prob, entropy = found["log_prob"], found["entropy"]
        advantages, reference = task.policy_inputs.unbind(1)
        old = log_prob if task.old_log_probs is None else task.old_log_probs
        counts: Counts = {"sum/entropy": entropy.sum(), "sum/nonfinite": found["nonfinite"].sum()}
        counts |= {
            f"sum/{name}": each for name, each in clip_counts(self.tokens.clips, log_prob, old, advantages).items()
        }
        terms, coef = {"entropy_loss": entropy}, self.config.kl_loss_coef
        if self.tokens.kl is not None or task.references:
            terms["kl_loss"] = self.tokens.divergence(log_prob, reference) if self.tokens.kl else found["divergence"]
        # The token's loss holds an estimate of the KL, and not the exact one.
        terms["pg_loss"] = found["policy_loss"] - (coef * terms["kl_loss"] if self.tokens.kl else 0.0)
        of_update = {name: (weights * values).sum() for name, values in terms.items()}
        if task.slopes is not None:
            of_update["pg_loss"] = of_update["pg_loss"] + task.slopes(log_prob)[0]
        loss = of_update["pg_loss"] - self.config.entropy_coeff * of_update["entropy_loss"]
        of_update["loss"] = loss + coef * of_update["kl_loss"] if "kl_loss" in of_update else loss
        divisor = self.divisor(micro_batch)
        counts |= {f"sum/{name}": value.double() / divisor for name, value in of_update.items()}
        counts["sum/tokens"] = float(len(log_prob))
        if first_update and "rollout_log_probs" in micro_batch:
            counts |= agreement(micro_batch, log_prob, task.own)
        return counts


def _sizes(micro_batch: TensorDict) -> dict[str, Any]:
    """Return verl's sizes of the update, over all ranks."""
    return {name: micro_batch[name] for name in ("batch_num_tokens", "global_batch_size")}


def reduce(raw: Mapping[str, Any]) -> dict[str, float]:
    """Return the step's metrics from the lists that the workers returned."""
    total, metrics = totals(raw), shared_metrics(raw)
    tokens, updates = max(total["sum/tokens"], 1.0), max(metrics["actor/num_updates"], 1.0)
    metrics |= {f"actor/{name}": total[f"sum/{name}"] / tokens for name in PER_TOKEN}
    metrics |= {f"actor/{name}": total[f"sum/{name}"] / updates for name in PER_UPDATE if f"sum/{name}" in total}
    return metrics | agreement_metrics(total, raw)


class PolicyWorker(StudentWorker):
    """Trains on rows with advantages; a reference that reads them first is a model of its own, or the student without adapters."""

    reader_role = "reference"
    spec: GrpoSpec

    @property
    def read_models(self) -> list[Teacher]:
        trusts, dtype = self.spec.model.trust_remote_code, self.spec.actor.dtype
        reference = Teacher(path=self.student_path, trust_remote_code=trusts, dtype=dtype, offload=True)
        return [reference] if self.spec.has_reference else []

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        super().init_model()
        self._actor_config = actor = omega_conf_to_dataclass(self.config.actor)
        self._kl = self.spec.grpo.kl_loss_type if self.spec.grpo.kl_loss_coef > 0 else None
        self._tokens = token_loss(actor, kl=None if self._kl == "full" else self._kl)
        if self._tokens.mode is None and self.spec.actor.ulysses_sequence_parallel_size > 1:
            raise Unfit(
                f"actor_rollout_ref.actor.policy_loss.loss_mode={actor.policy_loss.loss_mode}: it needs whole rows on one rank; set "
                "actor.ulysses_sequence_parallel_size: 1"
            )

    def make_updates(self, data: TensorDict, timing: dict[str, float]) -> dict[str, Any] | None:
        """Make the updates of a step; `data` are rows as of `update_actor` with `advantages` [B, response]."""
        rows, config = rows_from_batch(data), self._actor_config
        known = states = None
        if self._kl is not None:
            with marked_timer("reference_s", timing):
                if self._kl == "full":
                    states = TeacherStates(self.cache)
                    entries = int(self.student_engine.model_config.hf_config.vocab_size)
                    read_teachers(data, rows, teachers=self.readers, states=states, valid_vocab=entries)
                else:
                    known = self._read_reference(data, rows)
        weights = token_weights(config, rows.num_trained_tokens)
        advantages = torch.cat(data["advantages"].unbind())[rows.response_mask].float()
        loss = PolicyLoss(
            rows=rows,
            loss=Loss(temperature=self.spec.rollout.temperature, policy=self._tokens),
            weights=Weights(
                policy=weights,
                entropy=config.entropy_coeff * weights if config.entropy_coeff else None,
                divergence=None if states is None else config.kl_loss_coef * weights,
            ),
            policy_inputs=torch.stack([advantages, torch.zeros_like(advantages) if known is None else known], dim=1),
            old_log_probs=self.old_log_probs(data, rows, timing),
            states=states,
            options={"watch": ("entropy",), "sizes": self.sizes},
            tokens=self._tokens,
            config=config,
        )
        return self.train(data, loss, timing)

    def _read_reference(self, data: TensorDict, rows: RolloutRows) -> Tensor:
        """Return the reference's log-probabilities [T] of the trained tokens."""
        if not self.readers:
            with self.student_engine.disable_adapter():
                return self.read_log_probs(data, rows, self.student_engine)
        log_probs = self.read_log_probs(data, rows, self.readers[0])
        self.readers[0].release()
        return log_probs
