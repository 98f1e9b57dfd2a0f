"""The OPD worker: verl's hybrid worker whose ref is the teacher, with a two-phase update (teacher, then student)."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from tensordict import TensorDict
from torch import distributed
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.utils import tensordict_utils as tu
from verl.utils.profiler import DistProfiler
from verl.workers.config import DistillationConfig, TrainingWorkerConfig
from verl.workers.engine_workers import TrainingWorker

from opd.batch import TEACHER_PROMPTS, RolloutRows, build_opd_batch
from opd.importance import Schedule
from opd.importance.counter import step_seed
from opd.memory.job import GIB
from opd.rollout.rows import FILLER_TOKENS
from opd.worker.engines import DivergenceLoss, TeacherEngine
from opd.worker.reading import as_teacher_reads, read_by_teacher
from opd.worker.self_teachers import SelfTeachers
from opd.worker.signs import WatchedWeights
from opd.worker.step_metrics import CHOICE, StudentCounts, cache_counts, over_sequence, row_names
from opd.worker.student_task import StudentTasks, policy_loss
from opd.worker.teacher_cache import HiddenCache
from opd.worker.teacher_phase import TeacherPhase, TeacherStates
from opd.worker.token_choice import choose, leave_out_beyond, read_log_probs
from opd.worker.token_view import Seen, TokenView
from opd.worker.training_workers import teacher_worker
from opd.worker.unshared_tokens import leave_out_unshared
from opd.worker.update import StudentWorker, as_output, num_updates, numbered


class OPDWorker(StudentWorker):
    """Actor (student), ref (teacher) and rollout in one worker; spec and facts of the run come with the config.

    One `update_opd` runs every optimizer update of a step. Phase 1 caches the teacher's final hidden states at the loss
    positions of this rank's rows; phase 2 trains the student. `opd.importance.tokens` may leave only some tokens in the
    loss: chosen before phase 1 where no teacher is needed for it, else between the phases. The
    loss is that of the step's stage (`opd.stages`), of the tokens within its horizon (`opd.horizon`). The
    memory plan says what is on the device when: with room everything, else the teacher's backbone only in phase 1 and the
    student's only in phase 2, while the teacher's head stays for phase 2. Several teachers pass one after another over the
    rows that are theirs, and the student's head reads each row's own. A teacher may read the responses behind prompts of
    its own, and may be the student as it was some steps ago.
    """

    def __init__(
        self, config: DictConfig, role: str, distillation_config: DistillationConfig | None = None, **kwargs: Any
    ):
        super().__init__(config=config, role=role, distillation_config=distillation_config, **kwargs)
        assert self.ours.distillation is not None  # no other kind has this worker
        self.spec, self.facts = self.ours.distillation, self.ours.run
        self.opd, self._teacher_paths = self.spec.opd, self.ours.teacher_paths
        self.teachers: list[TrainingWorker] = []
        self._cache: HiddenCache | None = None
        self._schedule = Schedule.of(
            self.opd,
            total_steps=config.actor.optim.total_training_steps,
            response_length=self.spec.data.max_response_length,
        )
        self._policy_loss = policy_loss(self.opd.policy) if self.opd.has_policy else None
        self._view: TokenView | None = None
        self._counts: StudentCounts | None = None
        self._self_teachers = SelfTeachers(engines={}, every={})

    def ref_worker_cls(self, config: TrainingWorkerConfig) -> TrainingWorker:
        """The first teacher; the others are built beside it, each whole before the next."""
        first, *others = (
            teacher_worker(config, teacher, self._teacher_paths[key])
            for key, teacher in self.spec.named_teachers.items()
        )
        for other in others:
            other.reset()  # as verl does with the first
        self.teachers = [first, *others]
        return first

    @property
    def teacher_engine(self) -> TeacherEngine:
        engine: TeacherEngine = self.ref.engine
        return engine

    @property
    def teacher_engines(self) -> list[TeacherEngine]:
        """In the order of `named_teachers`."""
        return [teacher.engine for teacher in self.teachers]

    @property
    def reader_paths(self) -> list[str]:
        return list(self._teacher_paths.values())

    @property
    def readers(self) -> list[TeacherEngine]:
        return self.teacher_engines

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        super().init_model()
        if ends := self._schedule.restarts():
            self.student_engine.restart_lr_schedule(ends, total_steps=self._schedule.total_steps)
        self._self_teachers = SelfTeachers(
            engines=dict(zip(self.spec.named_teachers, self.teacher_engines, strict=True)),
            every={key: teacher.refresh_every for key, teacher in self.spec.named_teachers.items()},
        )

    def check_models(self) -> None:
        self._check_sharing()
        super().check_models()

    def write_checkpoint(
        self, local_path: str, hdfs_path: str | None, global_step: int, max_ckpt_to_keep: int | None
    ) -> None:
        super().write_checkpoint(local_path, hdfs_path, global_step, max_ckpt_to_keep)
        rank, world = distributed.get_rank(), distributed.get_world_size()
        self._self_teachers.save(Path(local_path), step=global_step, rank=rank, world=world)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_checkpoint(
        self, local_path: str, hdfs_path: str | None = None, del_local_after_load: bool = False
    ) -> None:
        super().load_checkpoint(local_path, hdfs_path, del_local_after_load)
        rank, world = distributed.get_rank(), distributed.get_world_size()
        self._self_teachers.load(Path(local_path), rank=rank, world=world)

    def _check_sharing(self) -> None:
        student, teacher = (e.ulysses_sequence_parallel_size for e in (self.student_engine, self.teacher_engine))
        if student != teacher:
            raise ValueError(
                f"actor_rollout_ref.ref.ulysses_sequence_parallel_size={teacher}: student and teacher must share sequences "
                f"alike, the actor's is {student}; remove the override"
            )

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    @DistProfiler.annotate(color="red", role="actor_update", scheduled=True)
    def update_opd(self, data: TensorDict) -> TensorDict | None:
        """Every optimizer update of one step over this rank's rows.

        Args:
            data: nested `input_ids`, `position_ids`, `prompts`, `responses`, `response_mask`, `loss_mask`, in
                some steps `rollout_log_probs`; where a teacher has prompts of its own, nested `teacher_prompts` of all
                rows; of several teachers `teacher` [B] int64, the number of each row's in the
                order of their names; with a policy gradient `advantage` [B] fp32; `sample_weights` [B] fp32; `row_id` [B] int64, of no other row of the step; `seed` and
                `training_step`, by which tokens are drawn and the stage is known; `shown_rows`, numbers of the rows that
                `read_token_view` is to tell token by token (absent: it is not asked for); the batch settings of verl's
                `train_mini_batch`.

        Returns:
            No rows; `metrics`: lists of counts to be summed by `opd.worker.step_metrics.reduce`.
        """
        data = numbered(data)
        step = tu.get_non_tensor_data(data, "training_step", 0)
        stage, horizon = self._schedule.stage(step), self._schedule.num_tokens(step)
        loss_weights = self._schedule.weights_at(step)
        num_left_out = leave_out_unshared(data, self.facts.valid_vocab, read_by_teacher(data))
        if horizon is not None:
            leave_out_beyond(data, tokens=horizon)
        # Rows that only fill the step up train nothing; no other row may be longer than agreed.
        longest = max(self.opd.max_length, FILLER_TOKENS)
        batch = build_opd_batch(data, max_length=longest, sample_weights=data["sample_weights"])
        data = data.exclude(TEACHER_PROMPTS)  # the student has no use for them
        self._self_teachers.before(step, self.student_engine)
        shown = tu.get_non_tensor_data(data, "shown_rows", ())
        self._view = TokenView(batch.rows, data["row_id"].tolist(), shown) if shown else None
        self._counts = StudentCounts(
            spec=self.spec,
            stage=stage,
            policy_weight=loss_weights.policy,
            row_names=row_names(data),
            view=self._view,
        )
        cache, selection = self._hidden_cache(), self.opd.importance.tokens
        states = TeacherStates(
            cache=cache,
            names=sorted(self.spec.teachers),
            of_rows=data["teacher"].tolist() if self.spec.teachers else None,
        )
        tasks = StudentTasks(
            spec=self.spec,
            facts=self.facts,
            stage=stage,
            weights=loss_weights,
            policy_loss=self._policy_loss,
            rows=batch.rows,
            states=states,
            choice_seed=step_seed(tu.get_non_tensor_data(data, "seed", 0), step),
        )
        chosen: dict[str, float] = {}
        started = time.perf_counter()
        try:
            if selection.score != "none" and not selection.needs_teacher:
                tasks, chosen = self._choose(data, tasks)
            teacher_started = time.perf_counter()
            self._teacher_phase(data, tasks.rows, batch.teacher_rows, states)
            teacher_s = time.perf_counter() - teacher_started
            if selection.needs_teacher:
                tasks, chosen = self._choose(data, tasks)
            if loss_weights.policy and num_updates(data, self.student_engine.get_data_parallel_size()) > 1:
                old = read_log_probs(data, tasks.rows, tasks.log_probs, worker=self.actor, reading=self.reading)
                tasks = dataclasses.replace(tasks, old_log_probs=old)
            score_s = time.perf_counter() - started - teacher_s
            if self._schedule.resets_optimizer(step):
                self.student_engine.reset_optimizer()
            over_rows = self.opd.loss_agg_mode != "token-mean"
            loss = DivergenceLoss(tasks.divergence, self._counts.count, over_rows=over_rows)
            weights = WatchedWeights(self.student_engine.module) if self.spec.trainer.monitor else None
            metrics = self.train(data, loss)
            moved = cache_counts(cache)
        finally:
            cache.clear()
        if self.student_engine.use_ulysses_sp:
            moved = over_sequence(moved, self.student_engine.ulysses_parallel_group, self.student_engine.device)
        if metrics is None:
            return None
        metrics["sum/unshared_tokens"] = [float(num_left_out)]
        if weights is not None:
            metrics.update(weights.moved())
        metrics["timing/teacher_s"] = [teacher_s]
        metrics["timing/student_s"] = [time.perf_counter() - started - teacher_s - score_s]
        if selection.score != "none" or tasks.old_log_probs is not None:
            metrics["timing/score_s"] = [score_s]
        if selection.score != "none":
            metrics.update({f"{CHOICE}{name}": [value] for name, value in chosen.items()})
        metrics.update({name: [megabytes] for name, megabytes in moved.items()})
        return as_output(metrics)

    def _hidden_cache(self) -> HiddenCache:
        """The one cache of this worker; its pinned memory is kept from step to step."""
        if self._cache is None:
            gib = float("inf") if self.opd.cache_gib is None else self.opd.cache_gib
            if self.plan is not None and self.plan.job.device_bytes is not None:
                gib = self.plan.choice.cache_bytes / GIB
            self._cache = HiddenCache(device_gib=gib, device=self.teacher_engine.device)
        return self._cache

    def _teacher_phase(
        self, data: TensorDict, rows: RolloutRows, own_rows: RolloutRows | None, states: TeacherStates
    ) -> None:
        """Fill `states` with what the teachers read of the rows' trained tokens, and with their heads.

        Args:
            own_rows: the rows with prompts of the teachers' own; None: they read the student's.
        """
        if own_rows is not None:
            rows = dataclasses.replace(own_rows, response_mask=rows.response_mask)
            data = as_teacher_reads(data, rows)
        phase = TeacherPhase(
            teachers=self.teachers,
            reading=self.reading,
            states=states,
            valid_vocab=self.facts.valid_vocab,
            load_ahead=self.plan is not None and self.plan.choice.load_ahead,
        )
        phase.run(data, rows)

    def _choose(self, data: TensorDict, tasks: StudentTasks) -> tuple[StudentTasks, dict[str, float]]:
        """Leave only some of the step's tokens in the loss: `opd.worker.token_choice.choose`."""
        rows, metrics = choose(data, tasks, student=self.actor, reading=self.reading, view=self._view)
        return dataclasses.replace(tasks, rows=rows), metrics

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def read_nonfinite_rows(self) -> list[str]:
        """Names of this rank's rows with a token whose loss was not finite, in the last step."""
        return [] if self._counts is None else sorted(self._counts.nonfinite_rows)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def read_token_view(self) -> Seen:
        """What this rank saw of the last step's tokens; the step was given `shown_rows`."""
        assert self._view is not None
        return self._view.seen
