"""The worker of GRPO: the update of all kinds with a policy loss, an entropy bonus and the KL to the model that it began with."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.profiler import DistProfiler
from verl.workers.config import ActorConfig, TrainingWorkerConfig
from verl.workers.engine_workers import TrainingWorker

from opd.batch import RolloutRows, rows_from_batch
from opd.errors import Unfit
from opd.experiment import GrpoSpec
from opd.losses import Loss, Output, Weights
from opd.memory.sources import has_reference, update_settings
from opd.update.counts import Counts, flatten, shared_metrics, totals
from opd.update.engines import TeacherEngine
from opd.update.head_loss import HeadLoss
from opd.update.loss_task import LossTask
from opd.update.policy_loss import TokenLoss, WholeLoss, clip_counts, token_loss
from opd.update.reading import read_log_probs
from opd.update.step_metrics import agreement, agreement_metrics
from opd.update.student import StudentWorker, as_output, num_updates, numbered, reading_worker
from opd.update.teacher_phase import TeacherStates, read_teachers

PER_TOKEN = ("entropy", "pg_clipfrac", "pg_clipfrac_lower", "ppo_kl")
"""Metrics that are means over the step's tokens."""
PER_UPDATE = ("loss", "pg_loss", "kl_loss", "entropy_loss")
"""Metrics that are aggregated as the loss is, and averaged over the step's updates."""


def token_weights(config: ActorConfig, counts: Tensor, *, num_tokens: float, num_rows: float) -> tuple[Tensor, float]:
    """Return the weights [N] of rows' trained tokens in verl's aggregation mode, and the divisor of their sum.

    Args:
        counts: [B] trained tokens of each row. num_tokens, num_rows: of the update, over all ranks.
    """
    mode, ones = config.loss_agg_mode, torch.ones_like(counts, dtype=torch.float32)
    per_row = 1.0 / counts.clamp(min=1) if mode == "seq-mean-token-mean" else ones
    divisor = {"token-mean": num_tokens, "token-sum": 1.0}.get(mode, num_rows)
    if mode == "seq-mean-token-sum-norm":
        divisor *= float(config.loss_scale_factor or 1)
    return per_row.repeat_interleave(counts), max(divisor, 1.0)


@dataclass(frozen=True, kw_only=True)
class PolicyLoss(HeadLoss):
    """The loss of a GRPO step on this rank; its inputs [T, 2] are advantages and the reference's log-probabilities.

    Args:
        tokens: the part that is local to a token.
        config: verl's settings of the actor.
    """

    tokens: TokenLoss
    config: ActorConfig

    def divisor(self, micro_batch: TensorDict) -> float:
        sizes = {"num_tokens": micro_batch["batch_num_tokens"], "num_rows": micro_batch["global_batch_size"]}
        return token_weights(self.config, torch.zeros(0, dtype=torch.int64), **sizes)[1]

    def slopes(self, micro_batch: TensorDict, rows: RolloutRows, tokens: Tensor) -> WholeLoss | None:
        if self.tokens.mode is not None:
            return None
        counts = rows.response_lens
        mask = torch.zeros(len(counts), int(counts.max()), dtype=torch.bool)
        mask = mask.masked_scatter(torch.arange(mask.shape[1]) < counts[:, None], rows.response_mask)
        divisors = {name: micro_batch[name] for name in ("batch_num_tokens", "global_batch_size")}
        divisors["loss_scale_factor"] = self.config.loss_scale_factor
        assert self.inputs is not None
        old = None if self.old_log_probs is None else self.old_log_probs[tokens]
        advantages = self.inputs[tokens, 0]
        return WholeLoss(self.config, mask, old, advantages, divisors, divisor=self.divisor(micro_batch))

    def metrics(self, micro_batch: TensorDict, task: LossTask, output: Output, *, first_update: bool) -> Counts:
        found, weights = output.statistics, task.weights.policy
        assert weights is not None
        assert task.policy_inputs is not None
        log_prob, entropy = found["log_prob"], found["entropy"]
        advantages, reference = task.policy_inputs.unbind(1)
        old = log_prob if task.old_log_probs is None else task.old_log_probs
        sums = clip_counts(self.tokens.clips, log_prob, old, advantages) | {"entropy": entropy.sum()}
        policy = (weights * self.tokens.policy(log_prob, old, advantages)).sum()
        if task.slopes is not None:
            policy = policy + task.slopes(log_prob)[0]
        of_update = {"pg_loss": policy, "entropy_loss": (weights * entropy).sum()}
        loss = policy - self.config.entropy_coeff * of_update["entropy_loss"]
        if self.tokens.kl is not None:
            of_update["kl_loss"] = (weights * self.tokens.divergence(log_prob, reference)).sum()
        elif task.reference is not None:
            of_update["kl_loss"] = (weights * found["divergence"]).sum()
        if "kl_loss" in of_update:
            loss = loss + self.config.kl_loss_coef * of_update["kl_loss"]
        of_update["loss"] = loss
        divisor = self.divisor(micro_batch)
        counts: Counts = {f"sum/{name}": value for name, value in sums.items()}
        counts |= {f"sum/{name}": value.double() / divisor for name, value in of_update.items()}
        counts |= {"sum/tokens": float(len(log_prob)), "sum/nonfinite": found["nonfinite"].sum()}
        if first_update and "rollout_log_probs" in micro_batch:
            counts |= agreement(micro_batch, log_prob, task.own)
        return counts


def reduce(raw: Mapping[str, Any]) -> dict[str, float]:
    """Return the step's metrics from the lists that the workers returned."""
    total, metrics = totals(raw), shared_metrics(raw)
    tokens, updates = max(total["sum/tokens"], 1.0), max(metrics["actor/num_updates"], 1.0)
    metrics |= {f"actor/{name}": total[f"sum/{name}"] / tokens for name in PER_TOKEN}
    metrics |= {f"actor/{name}": total[f"sum/{name}"] / updates for name in PER_UPDATE if f"sum/{name}" in total}
    if "kl_coef" in raw:
        metrics["actor/kl_coef"] = next(iter(flatten(raw["kl_coef"])), math.nan)
    return metrics | agreement_metrics(total, raw)


class PolicyWorker(StudentWorker):
    """Trains on rows with advantages; a reference that reads them first is a model of its own, or the student without adapters."""

    reader_role = "reference"

    def ref_worker_cls(self, config: TrainingWorkerConfig) -> TrainingWorker:
        model, dtype = config.model_config, self.spec.actor.dtype
        return reading_worker(
            config, path=model.path, trust_remote_code=model.trust_remote_code, dtype=dtype, is_offloaded=True
        )

    @property
    def spec(self) -> GrpoSpec:
        """Return the experiment."""
        assert isinstance(self.ours.spec, GrpoSpec)  # no other kind has this worker
        return self.ours.spec

    @property
    def reader_paths(self) -> list[str]:
        return [self._student_path] if has_reference(self.spec) else []

    @property
    def readers(self) -> list[TeacherEngine]:
        return [self.ref.engine] if has_reference(self.spec) else []

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        super().init_model()
        self._actor_config = actor = omega_conf_to_dataclass(self.config.actor)
        kl = self.spec.grpo.kl_loss_type if self.spec.grpo.kl_loss_coef > 0 else None
        self._is_exact = kl == "full"
        self._tokens = token_loss(actor, kl=None if self._is_exact else kl)
        self._reads_reference = kl is not None
        shared = self.spec.actor.ulysses_sequence_parallel_size > 1
        if self._tokens.mode is None and shared:
            raise Unfit(
                f"actor_rollout_ref.actor.policy_loss.loss_mode={actor.policy_loss.loss_mode}: it needs whole rows on one rank; set "
                "actor.ulysses_sequence_parallel_size: 1"
            )

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    @DistProfiler.annotate(color="red", role="actor_update", scheduled=True)
    def update_policy(self, data: TensorDict) -> TensorDict | None:
        """Make every optimizer update of one step over this rank's rows.

        Args:
            data: nested `input_ids`, `position_ids`, `prompts`, `responses`, `response_mask`, `loss_mask`, `advantages` [B, response],
                in some steps `rollout_log_probs`; the batch settings of verl's `train_mini_batch`.

        Returns:
            No rows; `metrics`: lists of counts for `reduce`.
        """
        data = numbered(data)
        rows, spec = rows_from_batch(data), self.spec
        began_s = time.perf_counter()
        known = states = old = None
        if self._is_exact:
            states = self._read_states(data, rows)
        elif self._reads_reference:
            known = self._read_reference(data, rows)
        reference_s = time.perf_counter() - began_s
        if num_updates(data, self.student_engine.get_data_parallel_size()) > 1:
            old = self._read(data, rows, self.actor)
        score_s = time.perf_counter() - began_s - reference_s
        weights, _ = token_weights(self._actor_config, rows.num_trained_tokens, num_tokens=1, num_rows=1)
        advantages = torch.cat(data["advantages"].unbind())[rows.response_mask].float()
        entropy = self._actor_config.entropy_coeff
        loss = PolicyLoss(
            rows=rows,
            loss=Loss(temperature=spec.rollout.temperature, policy=self._tokens),
            weights=Weights(
                policy=weights,
                entropy=entropy * weights if entropy else None,
                divergence=None if states is None else self._actor_config.kl_loss_coef * weights,
            ),
            inputs=torch.stack([advantages, torch.zeros_like(advantages) if known is None else known], dim=1),
            old_log_probs=old,
            states=states,
            options={"watch": ("entropy",), "workspace_gib": update_settings(spec).workspace_gib},
            tokens=self._tokens,
            config=self._actor_config,
        )
        try:
            metrics = self.train(data, loss)
        finally:
            if self._cache is not None:
                self._cache.clear()
        if metrics is None:
            return None
        if self._reads_reference:
            metrics |= {"kl_coef": [spec.grpo.kl_loss_coef], "timing/reference_s": [reference_s]}
        if old is not None:
            metrics["timing/score_s"] = [score_s]
        return as_output(metrics | {"timing/student_s": [time.perf_counter() - began_s - reference_s - score_s]})

    def _read_reference(self, data: TensorDict, rows: RolloutRows) -> Tensor:
        """Return the reference's log-probabilities [T] of the trained tokens."""
        if not self.readers:
            with self.student_engine.disable_adapter():
                return self._read(data, rows, self.actor)
        with self.readers[0].on_device():
            return self._read(data, rows, self.ref)

    def _read_states(self, data: TensorDict, rows: RolloutRows) -> TeacherStates:
        """Return the reference's hidden states of the trained tokens, and its head."""
        states = TeacherStates(cache=self.hidden_cache())
        entries = int(self.student_engine.model_config.hf_config.vocab_size)
        read_teachers(data, rows, teachers=[self.ref], reading=self.reading, states=states, valid_vocab=entries)
        return states

    def _read(self, data: TensorDict, rows: RolloutRows, worker: TrainingWorker) -> Tensor:
        """Return a model's log-probabilities [T] of the trained tokens."""
        workspace_gib = update_settings(self.spec).workspace_gib
        temperature = self.spec.rollout.temperature
        return read_log_probs(
            data, rows, temperature=temperature, worker=worker, reading=self.reading, workspace_gib=workspace_gib
        )
