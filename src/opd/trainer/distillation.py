"""Kinds `opd` and `opd-agent`: on-policy distillation, through the trainer of all kinds."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import transfer_queue as tq
from omegaconf import DictConfig
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.utils import Role
from verl.utils.debug import marked_timer

from opd.batch import rows_from_batch, tool_mask_counts, tool_mask_metrics
from opd.compat import verl_trainer
from opd.config import OpdAgentSpec, OpdSpec
from opd.runs.progress import PROGRESS
from opd.runs.run import Run
from opd.trainer import preflight
from opd.trainer.carried import CarriedRows
from opd.trainer.dataset import PromptDataset
from opd.trainer.measured_rates import Measuring
from opd.trainer.problem_weights import ProblemWeights
from opd.trainer.row_facts import RowFacts, TeacherRoute
from opd.trainer.row_signs import RowSigns, generation_header
from opd.trainer.stages import Stages
from opd.trainer.teacher_prompts import TeacherPrompts
from opd.trainer.token_log import TokenLog
from opd.trainer.trainer import OrderedTrainer
from opd.worker import counts, step_metrics
from opd.worker.opd_worker import OPDWorker
from opd.worker.self_teachers import refresh_metrics
from opd.worker.unshared_tokens import check_unshared

READS = ("prompts", "responses", "response_mask", "rm_scores", "num_turns", "extra_fields")
"""The fields of the rows that `rollout_metrics` reads."""


def rollout_metrics(data: TensorDict, *, max_response_length: int) -> dict[str, float]:
    """Metrics of rows with the fields `READS`.

    Args:
        max_response_length: tokens of a response that has been cut.
    """
    scores = np.array([float(s.sum()) for s in data["rm_scores"].unbind()])
    extras = list(data["extra_fields"])
    correct = np.array([_is_correct(extra, score) for extra, score in zip(extras, scores, strict=True)])
    lengths = np.array([len(mask) for mask in data["response_mask"].unbind()])
    turns = np.array([int(t) for t in data["num_turns"]])
    return {
        "opd/n_correct": float(correct.sum()),
        "opd/accuracy": float(correct.mean()),
        "opd/score_mean": float(scores.mean()),
        "response_length/mean": float(lengths.mean()),
        "response_length/max": float(lengths.max()),
        "response_length/clip_ratio": float((lengths >= max_response_length).mean()),
        **{f"opd/num_turns/{name}": float(getattr(turns, name)()) for name in ("min", "max", "mean")},
        **tool_mask_metrics(tool_mask_counts(rows_from_batch(data))),
    }


def _is_correct(extra_fields: dict[str, Any], score: float) -> bool:
    """The scorer's own verdict where it gave one; a score above 0 otherwise (math_dapo scores -1/+1)."""
    info = extra_fields.get("reward_extra_info", {})
    return bool(float(info["acc"]) > 0) if "acc" in info else score > 0


logger = logging.getLogger(__name__)


class OPDTrainer(OrderedTrainer):
    """The ref worker is the teacher, the update is two-phase, no PPO passes."""

    _update_metrics: dict[str, float] | None = None
    _problem_weights: ProblemWeights | None = None
    """None: all prompts count alike."""
    _measuring: Measuring | None = None
    """Of pass rates, while it goes on."""
    _stages: Stages
    _row_facts: RowFacts
    _carried: CarriedRows | None = None
    """None: every step answers its own prompts."""
    _teacher_prompts: TeacherPrompts | None = None
    """None: teachers read the student's prompts."""
    _row_signs: RowSigns | None = None
    """None: faults are not looked for."""

    def __init__(self, config: DictConfig, run: Run | None = None):
        super().__init__(config, run)
        self._tokens = TokenLog(self._spec, run)

    @property
    def _spec(self) -> OpdSpec | OpdAgentSpec:
        assert self.ours.distillation is not None  # `TaskRunner` gives this trainer no other kind
        return self.ours.distillation

    def _see(self, dataset: PromptDataset) -> None:
        """What the teachers read, and weights of the training prompts: what is too long, or of weight 0, may leave the data set."""
        self._teacher_prompts = TeacherPrompts.of(dataset, self._spec)
        self._problem_weights = ProblemWeights.of(dataset, self._spec.opd.importance.problems, self.run)

    def prepare_step(self) -> dict[str, float]:
        metrics = self._weigh_again() | super().prepare_step()
        if self._carried is not None:
            metrics |= self._carried.metrics(self.global_steps)
            metrics["rollout/trajectories"] = float(self._carried.num_ended)
            metrics["rollout/failed"] += self._carried.num_failed
        return metrics

    def _add_batch_to_generate(self) -> None:
        if self._carried is None:
            super()._add_batch_to_generate()
            return
        batch = self._carried.next_batch(self.global_steps, self._next_train_batch, self.agent_loop_manager)
        self._submit_batch_to_rollout(batch)

    def _step_once(self, metrics: dict[str, Any], timing_raw: dict[str, float], sample_batch_size: int) -> KVBatchMeta:
        # verl counts prompts, and a carried answer's is a prompt of its own.
        num = sample_batch_size if self._carried is None else self._carried.rows_per_update
        return super()._step_once(metrics, timing_raw, num)

    def _weigh_again(self) -> dict[str, float]:
        """Weigh the prompts by what the student can do before this step, if it is time to; the metrics of it."""
        step, weights = self.global_steps, self._problem_weights
        if weights is None or not weights.are_due(step, self._stages.schedule):
            return {}
        PROGRESS.enter("pass rates", step)
        with marked_timer("pass_rates", self.timing_raw):
            self._measuring = Measuring(self._spec, self.train_dataset, step=step, run=self.run)
            checkpoint = f"{self.ours.run.run_id}/global_step_{step - 1}"
            self._measuring.measure(self.agent_loop_manager, between=self._serve_while_measuring)
            measured, failed_share = self._measuring.rates(checkpoint), self._measuring.failed_share
            self._measuring = None
        is_used = weights.use_measured(measured, failed_share)
        weights.keep(step=step)
        return {
            "opd/pass_rate_mean": float(np.mean([rate.pass_rate for rate in measured.values()])),
            "opd/pass_rate_failed_share": failed_share,
            "opd/pass_rates_used": float(is_used),
        }

    def _save_now(self) -> int | None:
        step = super()._save_now()
        if self._measuring is not None:
            self._measuring.save()
        return step

    def _serve_while_measuring(self) -> None:
        """As after the step before, for nothing has changed since: who resumes from it goes on measuring."""
        self.global_steps -= 1
        try:
            self._serve_requests()
        finally:
            self.global_steps += 1
        PROGRESS.enter("pass rates", self.global_steps)

    def _save_more(self, folder: Path) -> None:
        if self._problem_weights is not None:
            self._problem_weights.save(folder)
        if self._carried is not None:
            self._carried.save(folder)

    def _load_more(self, folder: Path) -> None:
        if self._problem_weights is not None:
            self._problem_weights.load(folder)
        if self._carried is not None:
            self._carried.load(folder)

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        # One worker object holds student and teacher, whatever the KL settings say.
        self._set_worker(Role.ActorRolloutRef, OPDWorker)
        self.use_reference_policy = False  # no stock ref pass; the worker uses its ref as the teacher

    def _init_dataloader(self) -> None:
        with verl_trainer.training_data(self._see):
            super()._init_dataloader()
        self._row_facts = RowFacts(
            reward_beta=self._spec.opd.reward_beta,
            policy=self._spec.opd.policy if self._spec.opd.has_policy else None,
            weights=self._problem_weights,
            route=TeacherRoute.of(self.train_dataset, self._spec),
            prompts=self._teacher_prompts,
        )
        total_steps = self.total_training_steps
        self._stages = Stages(self._spec, self.train_dataset, self.tokenizer, total_steps=total_steps)
        if isinstance(self._spec, OpdSpec) and self._spec.rollout.schedule == "carry":
            self._carried = CarriedRows(self._spec, self.train_dataset)
        if self._spec.trainer.monitor:
            header = generation_header(self.tokenizer, self.train_dataset.template_kwargs)
            self._row_signs = RowSigns(header, num_prompts=len(self.train_dataset))

    def _next_train_batch(self, num_prompts: int | None = None) -> TensorDict:
        """The step's prompts, with what its stage trains on."""
        batch = super()._next_train_batch(num_prompts)
        self._stages.put(batch, self.global_steps)
        return batch

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        # A divergence has no importance ratio, and a policy gradient's is read by the worker where a step has several updates;
        # rollout-vs-actor is checked in the first update.
        return batch

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        return batch

    def _balance_batch(self, batch: KVBatchMeta, metrics: dict[str, Any], **kwargs: Any) -> KVBatchMeta:
        """Weigh and name the surviving rows of each prompt, then order, pad and balance."""
        self._put_row_facts(batch, metrics)
        return super()._balance_batch(batch, metrics, **kwargs)

    def _put_row_facts(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> None:
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=self._row_facts.reads)
        facts, found = self._row_facts.of([tag["order"] for tag in batch.tags], data)
        metrics.update(found)
        if self._teacher_prompts is not None:
            metrics["data/num_teacher_overlong_dropped"] = float(self.train_dataset.num_teacher_overlong_dropped)
        tq.kv_batch_put(
            keys=batch.keys, partition_id=batch.partition_id, fields=TensorDict(facts, batch_size=len(batch.keys))
        )

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        orders = [tag["order"] for tag in batch.tags if not tag.get("is_padding", False)]
        batch.extra_info.update(
            self.update_settings,
            training_step=self.global_steps,
            shown_rows=self._tokens.choose(self.global_steps, self.total_training_steps, orders),
        )
        output = self.actor_rollout_wg.update_opd(batch)
        mode = self._spec.opd.loss_agg_mode
        self._update_metrics = step_metrics.reduce(output["metrics"], loss_agg_mode=mode)
        metrics.update(self._update_metrics | self._stages.metrics(self.global_steps))
        metrics.update(refresh_metrics(self._spec.named_teachers, self.global_steps))
        rows = self.actor_rollout_wg.read_nonfinite_rows() if metrics["opd/skipped"] else []
        self._skipped.see(
            made=round(metrics["opd/num_updates"]),
            skipped_last=counts.skipped_last(output["metrics"]),
            rows=sorted({row for of_rank in rows for row in of_rank}),
        )
        return batch

    def _check_step(self) -> None:
        super()._check_step()
        if self._update_metrics is not None:
            check_unshared(self._update_metrics, limit=self._spec.opd.max_unshared_mass)

    def _compute_metrics(
        self, batch: KVBatchMeta, metrics: dict[str, Any], timing_raw: dict[str, float], global_steps: int, epoch: int
    ) -> None:
        real = [i for i, tag in enumerate(batch.tags) if not tag.get("is_padding", False)]
        keys = [batch.keys[i] for i in real]
        data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=list(READS))
        # Without the measuring of pass rates, which few steps have: the time left is told by the last step's.
        own_s = timing_raw.get("step", 0.0) - timing_raw.get("pass_rates", 0.0)
        metrics |= {
            "training/global_step": global_steps,
            "training/epoch": epoch,
            "opd/valid_rows": float(len(keys)),
            **rollout_metrics(data, max_response_length=self.config.data.max_response_length),
            "timing/generate_s": timing_raw.get("gen", 0.0),
            "timing/train_s": timing_raw.get("update_actor", 0.0),
            "timing/step_s": own_s,
            **{f"timing_s/{name}": seconds for name, seconds in timing_raw.items()},
        }
        metrics |= self.pace([batch.tags[i] for i in real], own_s)
        orders = [batch.tags[i]["order"] for i in real]
        if self._row_signs is not None:
            most = self._stages.num_generated(global_steps) or self._spec.data.max_response_length
            prompts, responses = data["prompts"].unbind(), data["responses"].unbind()
            metrics |= self._row_signs.of(orders, prompts, responses, max_tokens=most)
            if global_steps == 1:
                self._tell_preflight(metrics)
        self._tokens.keep(
            global_steps,
            orders,
            data,
            read=self.actor_rollout_wg.read_token_view,
            loss_type=self._stages.loss_type(global_steps),
            tokenizer=self.tokenizer,
        )

    def _tell_preflight(self, metrics: Mapping[str, Any]) -> None:
        try:
            preflight.tell(
                metrics,
                self.ours,
                run=self.run,
                tokenizer=self.tokenizer,
                template_kwargs=self.train_dataset.template_kwargs,
                plan=self.actor_rollout_wg.tell_plan()[0],
            )
        except Exception:  # it looks on: a fault of its own ends no run
            logger.warning("the teacher's preflight is not told", exc_info=True)
