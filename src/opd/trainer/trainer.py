"""The trainers: verl's synchronous V1 trainer with our rollout, order, counts and run directory; OPD on top of it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.debug import marked_timer
from verl.utils.tracking import Tracking

from opd.batch import TEACHER_PROMPTS, rows_from_batch, tool_mask_counts, tool_mask_metrics
from opd.cluster.shutdown import GracefulStop
from opd.compat import verl_trainer
from opd.compat.plain_loads import plain_loads
from opd.config import EvalSpec, OpdAgentSpec, OpdSpec
from opd.config.errors import Problem, SpecError
from opd.config.run_config import KEY, RunConfig
from opd.losses import reward_weights
from opd.monitor import monitor
from opd.pods import stop
from opd.rollout.dialogues import DialogueLog, num_kept
from opd.rollout.log_probs import asks_log_probs
from opd.rollout.manager import RolloutManager
from opd.rollout.worker import RolloutReport
from opd.runs import origin
from opd.runs.progress import PROGRESS
from opd.runs.run import EXIT_TERMINATED, Run
from opd.runs.start_times import START, as_metrics, table
from opd.trainer import preflight
from opd.trainer.dataset import PromptDataset
from opd.trainer.fault_watch import FaultWatch
from opd.trainer.measured_rates import Measuring
from opd.trainer.problem_weights import ProblemWeights
from opd.trainer.routing import TeacherRoute
from opd.trainer.row_signs import RowSigns, generation_header
from opd.trainer.run_log import StepLogger, validation_scores
from opd.trainer.stages import Stages
from opd.trainer.teacher_prompts import TeacherPrompts
from opd.trainer.token_log import TokenLog, row_id
from opd.trainer.tracking import MlflowRun, links
from opd.worker import checkpointing, nonfinite, step_metrics
from opd.worker.nonfinite import SkippedUpdates
from opd.worker.opd_worker import OPDWorker
from opd.worker.policy_worker import PPOWorker
from opd.worker.self_teachers import refresh_metrics
from opd.worker.unshared_tokens import check_unshared

logger = logging.getLogger(__name__)


class OrderedTrainer(PPOTrainerSync):
    """verl's synchronous trainer made reproducible and countable; trains with verl's own losses (GRPO)."""

    def __init__(self, config: DictConfig, run: Run | None = None):
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
    def logger(self) -> StepLogger | None:
        return self._step_logger

    @logger.setter
    def logger(self, tracking: Tracking) -> None:
        # verl assigns its Tracking in `fit`, before the first validation.
        mlflow = None
        if self.run is not None and self._has_mlflow:
            params: Any = OmegaConf.to_container(self.config, resolve=True)
            params[KEY] = self.ours.tree()
            mlflow = MlflowRun(self.run, project=self.config.trainer.project_name, params=params)
        if (wandb := tracking.logger.get("wandb")) is not None:  # verl gave it our part as one text
            wandb.config.update({KEY: self.ours.tree()}, allow_val_change=True)
        ours = self.ours.trainer
        watch = FaultWatch(self.run) if ours is not None and ours.monitor else None
        self._step_logger = StepLogger(tracking, trainer=self, run=self.run, mlflow=mlflow, monitor=watch)
        if self.run is not None:
            store, attempt = self.run.stores[0], self.run.handle.attempt
            devices = self.actor_rollout_wg.tell_device()
            origin.add(store, attempt, devices=devices, trackers=links(tracking, mlflow))

    def _setup(self) -> None:
        in_process = int(self.config.actor_rollout_ref.rollout.agent.num_workers) == 0
        port = self.ours.spec.trainer.master_port
        with contextlib.ExitStack() as patches:
            patches.enter_context(verl_trainer.reward_workers())
            if in_process:
                patches.enter_context(verl_trainer.routing_in_process())
            if port is not None:
                patches.enter_context(verl_trainer.rendezvous_at(port))
            patches.enter_context(verl_trainer.told(START.mark))
            super()._setup()

    def pace(self, tags: Sequence[Mapping[str, Any]], step_s: float) -> dict[str, float]:
        """Tokens of a step's rows, prompts included, and their number a second and GPU.

        Args:
            tags: of the rows.
            step_s: seconds that the step took.
        """
        num_tokens = sum(tag["seq_len"] for tag in tags)
        a_second = num_tokens / max(step_s, 1e-9)
        return {
            "perf/total_num_tokens": float(num_tokens),
            "perf/throughput": a_second / self._get_n_gpus_for_throughput(),
        }

    def fit(self, agent_loop_manager: RolloutManager | None) -> None:
        if agent_loop_manager is not None:
            agent_loop_manager.is_asked_to_end = lambda: self._stop.requested
        with verl_trainer.quiet(), self._stop:
            super().fit(agent_loop_manager)
        PROGRESS.rest("end")  # the store's own deadlines bound what is left
        if self.run is not None:
            checkpointing.upload_what_is_left(self.run, self.actor_rollout_wg)

    def _init_dataloader(self) -> None:
        split = self.ours.spec.data.split
        asks = isinstance(self.ours.spec, EvalSpec)

        def settings(is_train: bool) -> dict[str, Any]:
            return {"split": split.model_dump(exclude_none=True)} if is_train or asks else {}

        with verl_trainer.data_settings(settings):
            super()._init_dataloader()
        if self.run is not None and not self.config.trainer.get("val_only", False):
            self.run.reporter.total_steps = int(self.total_training_steps)
        num, batch = len(self.train_dataset), int(self.config.data.train_batch_size)
        if num < batch and not self.config.trainer.get("val_only", False):
            dropped = self.train_dataset.num_overlong_dropped
            rule = (
                f"a step draws that many prompts, and {num} are left of the training data: {dropped} are longer than "
                f"data.max_prompt_length={self.config.data.max_prompt_length} tokens"
            )
            if split.part is not None:
                rule += f", and only part {split.part} of {split.of} is used (data.split)"
            if dropped := self.train_dataset.num_teacher_overlong_dropped:
                rule += f", {dropped} are too long as the teacher reads them"
            if self.train_dataset.num_left_out:
                rule += f", and {self.train_dataset.num_left_out} have weight 0 by opd.importance.problems"
            fix = f"at most {num}, a larger data.max_prompt_length, or more prompts"
            raise SpecError([Problem(path="data.train_batch_size", value=batch, rule=rule, fix=fix)])

    def _init_resource_pool_mgr(self) -> None:
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
            **monitor.summary(history),
        }

    def _load_checkpoint(self) -> None:
        def load() -> None:
            with plain_loads():
                super(OrderedTrainer, self)._load_checkpoint()
            if self.global_steps:
                if self.run is not None:
                    self.run.reporter.go_on_from(self.global_steps)
                named = self.config.trainer.resume_mode == "resume_path"
                self._load_more(Path(self.config.trainer.resume_from_path) if named else self._step_folder)

        # The workers exist and nothing is loaded yet: each can bring its files to the disk that it reads.
        if self.run is not None and self.ours.trainer is not None and self.ours.trainer.resume == "auto":
            checkpointing.resume(self.config, self.run, self.actor_rollout_wg, load)
        else:
            load()

    def _save_checkpoint(self) -> None:
        step = self.global_steps
        PROGRESS.enter("save", step)
        if self.run is not None and not self.run.checkpoints.begin(step):
            return
        super()._save_checkpoint()
        self._save_more(self._step_folder)
        if self.run is not None:
            self._unsealed_step = step

    @property
    def _step_folder(self) -> Path:
        """Where verl saves the step."""
        return Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"

    def _save_more(self, folder: Path) -> None:
        """What the driver saves in a step's checkpoint besides the state of its data."""

    def _load_more(self, folder: Path) -> None:
        """Load what `_save_more` saved."""

    def on_step_logged(self) -> None:
        """Seal what the step saved, now that its metrics are written: a resume from it has lost no row."""
        PROGRESS.enter("seal", self.global_steps)
        self._seal_saved()
        self._check_step()
        self._serve_requests()

    def _serve_requests(self) -> None:
        """Save for pods that have to go, and end a run that is asked to; `global_steps` is the step that has ended."""
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
        if stop.serve(stop.asked_in(Path(run.handle.local_dir)), save, is_over=is_over):
            checkpointing.take_back(run)
        PROGRESS.enter("next step", self.global_steps)

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        # Where they are configured, verl reads the rollout's log-probabilities in every step.
        rollout, every = self.config.actor_rollout_ref.rollout, self.ours.sampling.rollout.logprobs_every
        configured = rollout.calculate_log_probs
        rollout.calculate_log_probs = asks_log_probs(self.config, every=every, step=self.global_steps)
        try:
            return super()._compute_old_log_prob(batch, metrics)
        finally:
            rollout.calculate_log_probs = configured

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
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

    def prepare_step(self) -> dict[str, float]:
        """Generate the step's rollouts (all of `gen`), and report what failed."""
        PROGRESS.enter("rollout", self.global_steps)
        START.mark("the rest")
        started = START.take()
        for line in table(started):
            print(line, flush=True)
        with marked_timer("gen", self.timing_raw):
            self._add_batch_to_generate()
        report = self.agent_loop_manager.take_report()
        return {
            "rollout/trajectories": float(report.num_trajectories),
            "rollout/failed": float(report.num_failed),
            "reward/failed": float(report.num_reward_failed),
            "data/num_overlong_dropped": float(self.train_dataset.num_overlong_dropped),
            **{f"timing_s/rollout_{name}": seconds for name, seconds in report.seconds.items()},
            **({"rollout/truncated": 1.0} if self.ours.sampling.rollout.is_truncated else {}),
            **self._keep_dialogues(report),
            **as_metrics(started),
        }

    def _keep_dialogues(self, report: RolloutReport) -> dict[str, float]:
        """Store the report's conversations; their metrics."""
        if self.run is not None:
            self._dialogues.write(self.run, report.trajectories)
        return report.agent.metrics()

    def _validate(self) -> dict[str, float]:
        PROGRESS.enter("validation", self.global_steps)
        metrics: dict[str, float] = super()._validate()
        self.last_report = report = self.agent_loop_manager.take_report()
        return metrics | {
            "val-aux/rollout/failed": float(report.num_failed),
            "val-aux/reward/failed": float(report.num_reward_failed),
            "val-aux/num_overlong_dropped": float(self.val_dataset.num_overlong_dropped),
            **{f"val-aux/{name}": value for name, value in self._keep_dialogues(report).items()},
        }

    def _balance_batch(self, batch: KVBatchMeta, metrics: dict[str, Any], **kwargs: Any) -> KVBatchMeta:
        """Rows in the order of the data before verl balances them: completion order must not decide mini-batches."""
        PROGRESS.enter("update", self.global_steps)
        order = sorted(range(len(batch.keys)), key=lambda i: batch.tags[i]["order"])
        batch.reorder(order)
        return super()._balance_batch(batch, metrics, **kwargs)


class OPDTrainer(OrderedTrainer):
    """On-policy distillation: the ref worker is the teacher, the update is two-phase, no PPO passes."""

    _update_metrics: dict[str, float] | None = None
    _problem_weights: ProblemWeights | None = None
    """None: all prompts count alike."""
    _measuring: Measuring | None = None
    """Of pass rates, while it goes on."""
    _stages: Stages
    _route: TeacherRoute | None = None
    """None: one teacher reads all rows."""
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
        return self._weigh_again() | super().prepare_step()

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

    def _load_more(self, folder: Path) -> None:
        if self._problem_weights is not None:
            self._problem_weights.load(folder)

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        # One worker object holds student and teacher, whatever the KL settings say.
        self._set_worker(Role.ActorRolloutRef, OPDWorker)
        self.use_reference_policy = False  # no stock ref pass; the worker uses its ref as the teacher
        OmegaConf.update(self.config, f"actor_rollout_ref.{KEY}", self.config[KEY], force_add=True)

    def _init_dataloader(self) -> None:
        with verl_trainer.training_data(self._see):
            super()._init_dataloader()
        self._route = TeacherRoute.of(self.train_dataset, self._spec)
        total_steps = self.total_training_steps
        self._stages = Stages(self._spec, self.train_dataset, self.tokenizer, total_steps=total_steps)
        if self._spec.trainer.monitor:
            header = generation_header(self.tokenizer, self.train_dataset.template_kwargs)
            self._row_signs = RowSigns(header, num_prompts=len(self.train_dataset))

    def _next_train_batch(self, num_prompts: int | None = None) -> TensorDict:
        """The step's prompts, with what its stage trains on."""
        batch = super()._next_train_batch(num_prompts)
        self._stages.put(batch, self.global_steps)
        return batch

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        return batch  # OPD has no importance ratio; rollout-vs-actor is checked in the first update

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        return batch

    def _balance_batch(self, batch: KVBatchMeta, metrics: dict[str, Any], **kwargs: Any) -> KVBatchMeta:
        """Weigh and name the surviving rows of each prompt, then order, pad and balance."""
        self._put_row_facts(batch, metrics)
        return super()._balance_batch(batch, metrics, **kwargs)

    def _put_row_facts(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> None:
        fields = ["uid", "rm_scores", *(["prompts"] if self._teacher_prompts is not None else ())]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
        rewards = torch.stack([scores.sum() for scores in data["rm_scores"].unbind()]).float()
        beta = self._spec.opd.reward_beta
        weights = torch.ones(len(batch.keys)) if beta is None else reward_weights(rewards, list(data["uid"]), beta=beta)
        metrics["opd/reward_weight_max"] = weights.max().item()
        metrics["opd/reward_weight_min"] = weights.min().item()
        if self._problem_weights is not None:
            of_rows = self._problem_weights.of_rows([tag["order"][0] for tag in batch.tags])
            metrics["opd/problem_weight_mean"] = of_rows.mean().item()
            metrics["opd/problem_weight_max"] = of_rows.max().item()
            weights = weights * of_rows
        row_ids = torch.tensor([row_id(tag["order"]) for tag in batch.tags])
        facts = {"sample_weights": weights.float(), "row_id": row_ids, "row_score": rewards}
        if self._route is not None:
            facts["teacher"] = self._route.of_rows([tag["order"][0] for tag in batch.tags])
        if self._teacher_prompts is not None:
            own = self._teacher_prompts.of_rows([tag["order"][0] for tag in batch.tags])
            prompts = [of if of is not None else asked for of, asked in zip(own, data["prompts"].unbind(), strict=True)]
            facts[TEACHER_PROMPTS] = torch.nested.as_nested_tensor(prompts, layout=torch.jagged)
            metrics["data/num_teacher_overlong_dropped"] = float(self.train_dataset.num_teacher_overlong_dropped)
            lengths = [len(prompt) for prompt in prompts]
            metrics["opd/teacher_prompt_length/mean"] = sum(lengths) / len(lengths)
            metrics["opd/teacher_prompt_length/max"] = float(max(lengths))
        tq.kv_batch_put(
            keys=batch.keys, partition_id=batch.partition_id, fields=TensorDict(facts, batch_size=len(batch.keys))
        )

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        config = self.config.actor_rollout_ref
        mini_batch = config.actor.ppo_mini_batch_size * config.rollout.n
        orders = [tag["order"] for tag in batch.tags if not tag.get("is_padding", False)]
        batch.extra_info.update(
            global_batch_size=mini_batch,
            mini_batch_size=mini_batch,
            epochs=config.actor.ppo_epochs,
            seed=config.actor.data_loader_seed,
            dataloader_kwargs={"shuffle": config.actor.shuffle},
            temperature=config.rollout.temperature,
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
            skipped_last=step_metrics.skipped_last(output["metrics"]),
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
        fields = ["prompts", "responses", "response_mask", "rm_scores", "num_turns", "extra_fields"]
        data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=fields)
        masks = data["response_mask"].unbind()
        scores = np.array([float(s.sum()) for s in data["rm_scores"].unbind()])
        correct = np.array(
            [_is_correct(extra, score) for extra, score in zip(list(data["extra_fields"]), scores, strict=True)]
        )
        lengths = np.array([len(mask) for mask in masks])
        turns = np.array([int(t) for t in data["num_turns"]])
        # Without the measuring of pass rates, which few steps have: the time left is told by the last step's.
        own_s = timing_raw.get("step", 0.0) - timing_raw.get("pass_rates", 0.0)
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


def _is_correct(extra_fields: dict[str, Any], score: float) -> bool:
    """The scorer's own verdict where it gave one; a score above 0 otherwise (math_dapo scores -1/+1)."""
    info = extra_fields.get("reward_extra_info", {})
    return bool(float(info["acc"]) > 0) if "acc" in info else score > 0
