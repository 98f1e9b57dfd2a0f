"""The trainers: verl's synchronous V1 trainer with our rollout, order, counts and run directory; OPD on top of it."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.debug import marked_timer

from opd.batch import rows_from_batch, tool_mask_counts, tool_mask_metrics
from opd.cluster.shutdown import GracefulStop
from opd.compat import verl_trainer
from opd.compat.plain_loads import plain_loads
from opd.config import OpdAgentSpec, OpdSpec
from opd.config.errors import Problem, SpecError
from opd.config.run_config import KEY, RunConfig
from opd.losses import reward_weights
from opd.pods import stop
from opd.rollout.dialogues import DialogueLog, num_kept
from opd.rollout.worker import RolloutReport
from opd.runs.progress import PROGRESS
from opd.runs.run import EXIT_TERMINATED, Run
from opd.trainer.run_log import StepLogger, validation_scores
from opd.trainer.tracking import MlflowRun
from opd.worker import checkpointing, nonfinite, step_metrics
from opd.worker.nonfinite import SkippedUpdates
from opd.worker.policy_worker import PPOWorker
from opd.worker.unshared_tokens import check_unshared
from opd.worker.worker import OPDWorker

logger = logging.getLogger(__name__)


class OrderedTrainer(PPOTrainerSync):
    """verl's synchronous trainer made reproducible and countable; trains with verl's own losses (GRPO)."""

    def __init__(self, config, run=None):
        self.run = run
        self.ours = RunConfig.of(config)
        self._step_logger: StepLogger | None = None
        self._unsealed_step: int | None = None
        self._saved_step: int | None = None
        self._stop = GracefulStop()
        self._dialogues = DialogueLog(num_kept(self.ours))
        self._skipped = SkippedUpdates(self.ours.trainer.max_skipped_updates if self.ours.trainer else 0)
        # "console" is our own line a step; with a run directory "file" is its metrics.jsonl (verl's file logger
        # truncates on open, which would wipe a resumed history), and MLflow's run is the same in all attempts.
        ours = ("console", "file", "mlflow") if run is not None else ("console",)
        loggers = [config.trainer.logger] if isinstance(config.trainer.logger, str) else config.trainer.logger
        self._has_mlflow = run is not None and "mlflow" in loggers
        config.trainer.logger = [name for name in loggers if name not in ours]
        self._watch_progress()
        if run is not None:
            config.trainer.default_local_dir = str(run.checkpoints.staging)
        super().__init__(config)
        # The rollout manager returns when all rows are stored: nothing is left to poll for.
        self.replay_buffer.poll_interval = 0.01

    def _watch_progress(self) -> None:
        folder = "" if self.run is None else str(self.run.handle.attempt_dir)
        trainer = self.ours.spec.trainer
        PROGRESS.watch(folder=folder, floor_s=trainer.stall_floor_s, factor=trainer.stall_factor)
        PROGRESS.enter("start", 0)

    @property
    def logger(self):
        return self._step_logger

    @logger.setter
    def logger(self, tracking) -> None:
        # verl assigns its Tracking in `fit`, before the first validation.
        mlflow = None
        if self.run is not None and self._has_mlflow:
            params: Any = OmegaConf.to_container(self.config, resolve=True)
            params[KEY] = self.ours.tree()
            mlflow = MlflowRun(self.run, project=self.config.trainer.project_name, params=params)
        if (wandb := tracking.logger.get("wandb")) is not None:  # verl gave it our part as one text
            wandb.config.update({KEY: self.ours.tree()}, allow_val_change=True)
        self._step_logger = StepLogger(tracking, trainer=self, run=self.run, mlflow=mlflow)

    def _setup(self):
        in_process = int(self.config.actor_rollout_ref.rollout.agent.num_workers) == 0
        port = self.ours.spec.trainer.master_port
        with contextlib.ExitStack() as patches:
            patches.enter_context(verl_trainer.reward_workers())
            if in_process:
                patches.enter_context(verl_trainer.routing_in_process())
            if port is not None:
                patches.enter_context(verl_trainer.rendezvous_at(port))
            super()._setup()

    def fit(self, agent_loop_manager):
        with verl_trainer.quiet(), self._stop:
            super().fit(agent_loop_manager)
        PROGRESS.rest("end")  # the store's own deadlines bound what is left
        if self.run is not None:
            checkpointing.upload_what_is_left(self.run, self.actor_rollout_wg)

    def _init_dataloader(self):
        super()._init_dataloader()
        num, batch = len(self.train_dataset), int(self.config.data.train_batch_size)
        if num < batch and not self.config.trainer.get("val_only", False):
            dropped = self.train_dataset.num_overlong_dropped
            rule = (
                f"a step draws that many prompts, and {num} are left of the training data: {dropped} are longer than "
                f"data.max_prompt_length={self.config.data.max_prompt_length} tokens"
            )
            fix = f"at most {num}, a larger data.max_prompt_length, or more prompts"
            raise SpecError([Problem(path="data.train_batch_size", value=batch, rule=rule, fix=fix)])

    def _init_resource_pool_mgr(self):
        super()._init_resource_pool_mgr()
        self._set_worker(next(iter(self.role_worker_mapping)), PPOWorker)

    def _set_worker(self, role: Role, worker_class: type) -> None:
        """Make `worker_class` the one worker of the job, under `role`."""
        pool = self.mapping.pop(next(iter(self.role_worker_mapping)))
        self.role_worker_mapping: dict[Role, Any] = {role: ray.remote(worker_class)}
        self.mapping[role] = pool

    def outcome(self) -> dict[str, Any]:
        """What `result.json` holds of a training run."""
        history = [] if self.run is None else self.run.history()
        scores = [found for row in history if (found := validation_scores(row))]
        return {
            "steps": self.total_training_steps,
            "validation_before": scores[0] if scores else {},
            "validation_after": scores[-1] if scores else {},
            **nonfinite.summary(history),
        }

    def _load_checkpoint(self):
        def load() -> None:
            with plain_loads():
                super(OrderedTrainer, self)._load_checkpoint()

        # The workers exist and nothing is loaded yet: each can bring its files to the disk that it reads.
        if self.run is not None and self.ours.trainer is not None and self.ours.trainer.resume == "auto":
            checkpointing.resume(self.config, self.run, self.actor_rollout_wg, load)
        else:
            load()

    def _save_checkpoint(self):
        step = self.global_steps
        PROGRESS.enter("save", step)
        if self.run is None:
            super()._save_checkpoint()
        elif self.run.checkpoints.begin(step):
            super()._save_checkpoint()
            self._unsealed_step = step

    def on_step_logged(self) -> None:
        """Seal what the step saved, now that its metrics are written: a resume from it has lost no row."""
        PROGRESS.enter("seal", self.global_steps)
        self._seal_saved()
        self._check_step()
        if self.run is not None:
            self._serve_pods(self.run)
        if self._stop.requested and self.global_steps < self.total_training_steps:
            if (step := self._save_now()) == self.global_steps:
                print(f"saved step {step}; the same command goes on from here", flush=True)
            raise SystemExit(EXIT_TERMINATED)

    def _check_step(self) -> None:
        """End a run that the step has shown to be going nowhere; its row is written, and what it saved is sealed."""
        self._skipped.check()

    def _serve_pods(self, run: Run) -> None:
        """Save for pods that have to go, and hold still until they are gone; after the last step there is only the end."""

        def save() -> int | None:
            step = self._save_now()
            PROGRESS.rest("pods")
            checkpointing.hand_over(run)
            return step

        def is_over() -> bool:
            return self._stop.requested or self.global_steps >= self.total_training_steps

        PROGRESS.rest("pods")
        if stop.serve(Path(run.handle.local_dir), save, is_over=is_over):
            checkpointing.take_back(run)
        PROGRESS.enter("next step", self.global_steps)

    def _update_actor(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        batch = super()._update_actor(batch, metrics)
        made, skipped = (round(metrics.get(f"actor/{name}", 0)) for name in ("num_updates", "skipped"))
        self._skipped.see(made, skipped if skipped == made else 0)  # their order is not known here
        return batch

    def _seal_saved(self) -> None:
        if self.run is not None and self._unsealed_step is not None:
            checkpointing.seal(self.run, self.actor_rollout_wg, self._unsealed_step, self.ours.checkpoint)
            self._saved_step, self._unsealed_step = self._unsealed_step, None

    def _save_now(self) -> int | None:
        """Save, seal and upload the step that has just ended, unless it was; the step that is safe, None if none is."""
        saves = self.config.trainer.save_freq > 0 and self.ours.checkpoint.save_on_exit
        if self.run is not None and saves and self.global_steps > 0 and self._saved_step != self.global_steps:
            self._save_checkpoint()
            self._seal_saved()
            self._saved_step = self.global_steps
        return self._saved_step

    def prepare_step(self) -> dict:
        """Generate the step's rollouts (all of `gen`), and report what failed."""
        PROGRESS.enter("rollout", self.global_steps)
        with marked_timer("gen", self.timing_raw):
            self._add_batch_to_generate()
        report = self.agent_loop_manager.take_report()
        return {
            "rollout/trajectories": float(report.num_trajectories),
            "rollout/failed": float(report.num_failed),
            "reward/failed": float(report.num_reward_failed),
            "data/num_overlong_dropped": float(self.train_dataset.num_overlong_dropped),
            **{f"timing_s/rollout_{name}": seconds for name, seconds in report.seconds.items()},
            **self._keep_dialogues(report),
        }

    def _keep_dialogues(self, report: RolloutReport) -> dict[str, float]:
        """Store the report's conversations; their metrics."""
        if self.run is not None:
            self._dialogues.write(self.run, report.trajectories)
        return report.agent.metrics()

    def _validate(self) -> dict[str, float]:
        PROGRESS.enter("validation", self.global_steps)
        metrics = super()._validate()
        self.last_report = report = self.agent_loop_manager.take_report()
        return metrics | {
            "val-aux/rollout/failed": float(report.num_failed),
            "val-aux/reward/failed": float(report.num_reward_failed),
            "val-aux/num_overlong_dropped": float(self.val_dataset.num_overlong_dropped),
            **{f"val-aux/{name}": value for name, value in self._keep_dialogues(report).items()},
        }

    def _balance_batch(self, batch: KVBatchMeta, metrics, **kwargs) -> KVBatchMeta:
        """Rows in the order of the data before verl balances them: completion order must not decide mini-batches."""
        PROGRESS.enter("update", self.global_steps)
        order = sorted(range(len(batch.keys)), key=lambda i: batch.tags[i]["order"])
        batch.reorder(order)
        return super()._balance_batch(batch, metrics, **kwargs)


class OPDTrainer(OrderedTrainer):
    """On-policy distillation: the ref worker is the teacher, the update is two-phase, no PPO passes."""

    _update_metrics: dict[str, float] | None = None

    @property
    def _spec(self) -> OpdSpec | OpdAgentSpec:
        assert self.ours.distillation is not None  # `TaskRunner` gives this trainer no other kind
        return self.ours.distillation

    def _init_resource_pool_mgr(self):
        super()._init_resource_pool_mgr()
        # One worker object holds student and teacher, whatever the KL settings say.
        self._set_worker(Role.ActorRolloutRef, OPDWorker)
        self.use_reference_policy = False  # no stock ref pass; the worker uses its ref as the teacher
        OmegaConf.update(self.config, f"actor_rollout_ref.{KEY}", self.config[KEY], force_add=True)

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        return batch  # OPD has no importance ratio; rollout-vs-actor is checked in the first update

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        return batch

    def _balance_batch(self, batch: KVBatchMeta, metrics, **kwargs) -> KVBatchMeta:
        """Weigh and name the surviving rows of each prompt, then order, pad and balance."""
        self._put_row_facts(batch, metrics)
        return super()._balance_batch(batch, metrics, **kwargs)

    def _put_row_facts(self, batch: KVBatchMeta, metrics: dict) -> None:
        fields = ["uid", "rm_scores"]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
        rewards = torch.stack([scores.sum() for scores in data["rm_scores"].unbind()]).float()
        beta = self._spec.opd.reward_beta
        weights = torch.ones(len(batch.keys)) if beta is None else reward_weights(rewards, list(data["uid"]), beta=beta)
        row_ids = torch.tensor([row_id(*tag["order"]) for tag in batch.tags])
        tq.kv_batch_put(
            keys=batch.keys,
            partition_id=batch.partition_id,
            fields=TensorDict({"sample_weights": weights.float(), "row_id": row_ids}, batch_size=len(batch.keys)),
        )
        metrics["opd/reward_weight_max"] = weights.max().item()
        metrics["opd/reward_weight_min"] = weights.min().item()

    def _update_actor(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        config = self.config.actor_rollout_ref
        mini_batch = config.actor.ppo_mini_batch_size * config.rollout.n
        batch.extra_info.update(
            global_batch_size=mini_batch,
            mini_batch_size=mini_batch,
            epochs=config.actor.ppo_epochs,
            seed=config.actor.data_loader_seed,
            dataloader_kwargs={"shuffle": config.actor.shuffle},
            temperature=config.rollout.temperature,
            training_step=self.global_steps,
        )
        output = self.actor_rollout_wg.update_opd(batch)
        self._update_metrics = step_metrics.reduce(output["metrics"])
        metrics.update(self._update_metrics)
        rows = self.actor_rollout_wg.read_nonfinite_rows() if metrics["opd/skipped"] else []
        self._skipped.see(
            made=round(metrics["opd/num_updates"]),
            skipped_last=step_metrics.skipped_last(output["metrics"]),
            rows=sorted({row for of_rank in rows for row in of_rank}),
        )
        return batch

    def _check_step(self) -> None:
        super()._check_step()
        if self._update_metrics is not None:
            check_unshared(self._update_metrics, limit=self._spec.opd.max_unshared_mass)

    def _compute_metrics(self, batch: KVBatchMeta, metrics, timing_raw, global_steps, epoch):
        real = [i for i, tag in enumerate(batch.tags) if not tag.get("is_padding", False)]
        keys = [batch.keys[i] for i in real]
        fields = ["prompts", "responses", "response_mask", "rm_scores", "num_turns", "extra_fields"]
        data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=fields)
        masks = data["response_mask"].unbind()
        scores = np.array([float(s.sum()) for s in data["rm_scores"].unbind()])
        correct = np.array(
            [_is_correct(extra, score) for extra, score in zip(list(data["extra_fields"]), scores, strict=True)]
        )
        lengths = np.array([len(mask) for mask in masks])
        turns = np.array([int(t) for t in data["num_turns"]])
        metrics |= {
            "training/global_step": global_steps,
            "training/epoch": epoch,
            "opd/valid_rows": float(len(keys)),
            "opd/n_correct": float(correct.sum()),
            "opd/accuracy": float(correct.mean()),
            "opd/score_mean": float(scores.mean()),
            "response_length/mean": float(lengths.mean()),
            "response_length/max": float(lengths.max()),
            "response_length/clip_ratio": float((lengths >= self.config.data.max_response_length).mean()),
            **{f"opd/num_turns/{name}": float(getattr(turns, name)()) for name in ("min", "max", "mean")},
            **tool_mask_metrics(tool_mask_counts(rows_from_batch(data))),
            "timing/generate_s": timing_raw.get("gen", 0.0),
            "timing/train_s": timing_raw.get("update_actor", 0.0),
            "timing/step_s": timing_raw.get("step", 0.0),
            **{f"timing_s/{name}": seconds for name, seconds in timing_raw.items()},
        }
        total_tokens = sum(batch.tags[i]["seq_len"] for i in real)
        metrics["perf/total_num_tokens"] = float(total_tokens)
        metrics["perf/throughput"] = (
            total_tokens / max(timing_raw.get("step", 0.0), 1e-9) / self._get_n_gpus_for_throughput()
        )


def row_id(index: int, sample: int, turn: int) -> int:
    """A number of a rollout row that no other row of its step has: data row, sample of it, output of that."""
    return (index << 24) | (sample << 12) | turn


def _is_correct(extra_fields: dict, score: float) -> bool:
    """The scorer's own verdict where it gave one; a score above 0 otherwise (math_dapo scores -1/+1)."""
    info = extra_fields.get("reward_extra_info", {})
    return bool(float(info["acc"]) > 0) if "acc" in info else score > 0
