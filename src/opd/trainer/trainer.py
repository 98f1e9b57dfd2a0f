"""The trainer of all kinds: verl's synchronous V1 trainer with our rollout, order, counts and run directory."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from omegaconf import DictConfig, OmegaConf
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.debug import marked_timer
from verl.utils.tracking import Tracking

from opd.cluster import lost
from opd.cluster.shutdown import GracefulStop
from opd.compat import verl_trainer, vllm_servers
from opd.compat.plain_loads import plain_loads
from opd.config import EvalSpec, OpdSpec
from opd.config.run_config import KEY, RunConfig
from opd.errors import NodeLost
from opd.monitor import monitor
from opd.pods import stop
from opd.rollout.dialogues import DialogueLog, num_kept
from opd.rollout.manager import RolloutManager
from opd.rollout.worker import RolloutReport
from opd.runs import origin
from opd.runs.progress import PROGRESS
from opd.runs.run import EXIT_TERMINATED, Run
from opd.runs.start_times import START, as_metrics, table
from opd.trainer.run_log import FaultWatch, StepLogger, validation_scores
from opd.trainer.tracking import MlflowRun, links
from opd.worker import checkpointing, nonfinite
from opd.worker.nonfinite import SkippedUpdates

# How often a wait for a save looks for signs of life.
SEAL_POLL_S = 5.0


class OrderedTrainer(PPOTrainerSync):
    """verl's synchronous trainer made reproducible and countable; each kind that trains adds its update."""

    _are_asleep = False  # the rollout servers, since a save between two steps

    def __init__(self, config: DictConfig, run: Run | None = None):
        self.run = run
        self.ours = RunConfig.of(config)
        self._step_logger: StepLogger | None = None
        self._unsealed_step: int | None = None
        self._saved_step: int | None = None
        self._sealing = checkpointing.Sealing()
        self.timing_raw: dict[
            str, float
        ] = {}  # verl makes one with each step; a save may be asked for before the first
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
            keeps = isinstance(self.ours.spec, OpdSpec) and self.ours.spec.rollout.keep_prefixes
            patches.enter_context(vllm_servers.begun_beside_models(self.config, keeps_prefixes=keeps))
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
        try:
            with verl_trainer.quiet(), self._stop:
                super().fit(agent_loop_manager)
                self._wait_for_seal()
        except (Exception, KeyboardInterrupt):  # the second is how `opd.cluster.watch` ends a run
            self._sealing.leave()
            raise
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
        if not self.config.trainer.get("val_only", False):
            self.train_dataset.check_fills(int(self.config.data.train_batch_size), split)

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        OmegaConf.update(self.config, f"actor_rollout_ref.{KEY}", self.config[KEY], force_add=True)

    @property
    def update_settings(self) -> dict[str, Any]:
        """Return how the workers cut a step's rows into updates, in verl's words."""
        config = self.config.actor_rollout_ref
        mini_batch = config.actor.ppo_mini_batch_size * config.rollout.n
        return {
            "global_batch_size": mini_batch,
            "mini_batch_size": mini_batch,
            "epochs": config.actor.ppo_epochs,
            "seed": config.actor.data_loader_seed,
            "dataloader_kwargs": {"shuffle": config.actor.shuffle},
            "temperature": config.rollout.temperature,
        }

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
        if self.run is not None:
            with marked_timer("save_wait", self.timing_raw):
                self._wait_for_seal()
            self.timing_raw["save_before"] = self._sealing.seconds
            if not self.run.checkpoints.begin(step):
                return
            if self.ours.checkpoint.overlap:
                self.actor_rollout_wg.copy_next_save()
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
        self._wake_servers()

    def _check_step(self) -> None:
        """End a run that the step has shown to be going nowhere; its row is written, and what it saved is sealed."""
        self._skipped.check()

    def _serve_pods(self, run: Run) -> None:
        """Save for pods that have to go, and hold still until they are gone; after the last step there is only the end."""

        def save() -> int | None:
            step = self._save_now()
            PROGRESS.rest("pods")
            run.hand_over()
            return step

        def is_over() -> bool:
            gone: dict[str, str] = {}
            with contextlib.suppress(ray.exceptions.RayError, OSError):  # where the head goes, Ray goes first
                gone = lost.parts_of_lost_nodes()
            if gone:  # nothing here waits for them, as a step would
                error = NodeLost(sorted(gone.values()))
                print(f"the pods go: {error}", flush=True)
                raise SystemExit(error.exit_code) from error
            return self._stop.requested or self.global_steps >= self.total_training_steps

        PROGRESS.rest("pods")
        if stop.serve(run.asked_in, save, is_over=is_over):
            run.take_back()
        PROGRESS.enter("next step", self.global_steps)

    def _seal_saved(self) -> None:
        """Have what the step saved sealed, beside the next steps if it may be; raises why an earlier save could not be."""
        run = self.run
        if run is None:
            return
        self._saved_step = self._sealing.look() or self._saved_step
        if (step := self._unsealed_step) is not None:
            self._unsealed_step, keep = None, self.ours.checkpoint
            self._sealing.begin(
                step, lambda: checkpointing.seal(run, self.actor_rollout_wg, step, keep, self._sealing.answered)
            )
            if not keep.overlap:
                self._wait_for_seal()

    def _wait_for_seal(self) -> None:
        """Until no save is on its way any more, which may take as long as it takes if the ranks answer."""
        seen = self._sealing.num_answers
        while not self._sealing.is_over(within_s=SEAL_POLL_S):
            if (now := self._sealing.num_answers) != seen:
                seen = now
                PROGRESS.tick()
        self._saved_step = self._sealing.wait() or self._saved_step

    def _save_now(self) -> int | None:
        """Save, seal and upload the step that has just ended, unless it was; the step that is safe, None if none is."""
        saves = self.config.trainer.save_freq > 0
        self._wait_for_seal()
        if self.run is not None and saves and self.global_steps > 0 and self._saved_step != self.global_steps:
            # As within a step: what the servers hold between two is room that the memory plan gives to a save.
            self.checkpoint_manager.sleep_replicas()
            self._are_asleep = True
            self._save_checkpoint()
            self._seal_saved()
            self._wait_for_seal()
            self._saved_step = self.global_steps
        return self._saved_step

    def _wake_servers(self) -> None:
        """Where a save between two steps has let them sleep and the run goes on."""
        if self._are_asleep:
            self._are_asleep = False
            self.on_step_end()

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
