"""The worker of distillation: its models that only read are the teachers, and an update has two phases, teachers then student."""

from __future__ import annotations

import time
from dataclasses import replace
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

from opd.batch import TEACHER_PROMPTS, OpdBatch, build_opd_batch
from opd.losses import Weights
from opd.rollout.rows import FILLER_TOKENS
from opd.update.divergence_loss import DivergenceLoss, loss_of, row_names, term_weights
from opd.update.engines import TeacherEngine
from opd.update.reading import as_teacher_reads, read_by_teacher, read_log_probs
from opd.update.scores import choose, keep_horizon, keep_rows
from opd.update.self_teachers import SelfTeachers
from opd.update.signs import WatchedWeights
from opd.update.step_metrics import CHOICE, cache_counts, over_sequence
from opd.update.student import StudentWorker, as_output, num_updates, numbered, reading_worker
from opd.update.teacher_phase import TeacherStates, read_teachers
from opd.update.token_view import Seen, TokenView
from opd.update.unshared_tokens import leave_out_unshared
from opd.weights import Schedule
from opd.weights.counter import step_seed


class OPDWorker(StudentWorker):
    """Actor (student), ref (the first teacher) and rollout in one worker.

    The teachers read first, each its own rows, and their hidden states at the trained tokens are cached; then the student trains.
    """

    def __init__(
        self, config: DictConfig, role: str, distillation_config: DistillationConfig | None = None, **kwargs: Any
    ):
        super().__init__(config=config, role=role, distillation_config=distillation_config, **kwargs)
        assert self.ours.distillation is not None  # no other kind has this worker
        self.spec, self.facts = self.ours.distillation, self.ours.run
        self.opd, self._teacher_paths = self.spec.opd, self.ours.teacher_paths
        self.teachers: list[TrainingWorker] = []
        self._schedule = Schedule.of(
            self.opd,
            total_steps=config.actor.optim.total_training_steps,
            response_length=self.spec.data.max_response_length,
        )
        self._loss: DivergenceLoss | None = None
        self._self_teachers = SelfTeachers(engines={}, every={})

    def ref_worker_cls(self, config: TrainingWorkerConfig) -> TrainingWorker:
        """Return the first teacher. The others are built after it, each whole before the next."""
        first, *others = (
            reading_worker(
                config,
                path=self._teacher_paths[key],
                trust_remote_code=teacher.trust_remote_code,
                dtype=teacher.dtype,
                is_offloaded=teacher.offload is not False,
            )
            for key, teacher in self.spec.named_teachers.items()
        )
        for other in others:
            other.reset()  # as verl does with the first
        self.teachers = [first, *others]
        return first

    @property
    def reader_paths(self) -> list[str]:
        return list(self._teacher_paths.values())

    @property
    def readers(self) -> list[TeacherEngine]:
        return [teacher.engine for teacher in self.teachers]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        super().init_model()
        if ends := self._schedule.restarts():
            self.student_engine.restart_lr_schedule(ends, total_steps=self._schedule.total_steps)
        self._self_teachers = SelfTeachers(
            engines=dict(zip(self.spec.named_teachers, self.readers, strict=True)),
            every={key: teacher.refresh_every for key, teacher in self.spec.named_teachers.items()},
        )

    def check_models(self) -> None:
        student, teacher = (e.ulysses_sequence_parallel_size for e in (self.student_engine, self.ref.engine))
        if student != teacher:
            raise ValueError(
                f"actor_rollout_ref.ref.ulysses_sequence_parallel_size={teacher}: student and teacher must share sequences "
                f"alike, the actor's is {student}; remove the override"
            )
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

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    @DistProfiler.annotate(color="red", role="actor_update", scheduled=True)
    def update_opd(self, data: TensorDict) -> TensorDict | None:
        """Make every optimizer update of one step over this rank's rows.

        Args:
            data: nested `input_ids`, `position_ids`, `prompts`, `responses`, `response_mask`, `loss_mask`, `rollout_log_probs` and
                `teacher_prompts` where there are any; [B] `sample_weights`, `row_id`, `teacher` (its number) of several, and
                `advantage` for a policy gradient; `training_step`, `seed`, `shown_rows` and verl's batch settings.

        Returns:
            No rows; `metrics`: lists of counts for `opd.update.step_metrics.reduce`.
        """
        data = numbered(data)
        step, selection = tu.get_non_tensor_data(data, "training_step", 0), self.opd.importance.tokens
        num_left_out = leave_out_unshared(data, self.facts.valid_vocab, read_by_teacher(data))
        batch, loss = self._prepare(data, step)
        data = data.exclude(TEACHER_PROMPTS)  # the student has no use for them
        self._self_teachers.before(step, self.student_engine)
        seed = step_seed(tu.get_non_tensor_data(data, "seed", 0), step)
        started, teacher_s, chosen = time.perf_counter(), 0.0, dict[str, float]()
        try:
            for phase in ("choose", "teachers") if not selection.needs_teacher else ("teachers", "choose"):
                if phase == "teachers":
                    teachers_started = time.perf_counter()
                    self._read_teachers(data, batch, loss)
                    teacher_s = time.perf_counter() - teachers_started
                elif selection.score != "none":
                    loss, chosen = choose(data, loss, seed=seed, student=self.actor, reading=self.reading)
            has_policy = loss.weights.policy is not None
            if has_policy and num_updates(data, self.student_engine.get_data_parallel_size()) > 1:
                temperature = self.spec.rollout.temperature
                options = {"worker": self.actor, "reading": self.reading, "temperature": temperature, **self._sizes}
                loss = replace(loss, old_log_probs=read_log_probs(data, loss.rows, **options))
            score_s = time.perf_counter() - started - teacher_s
            if self._schedule.resets_optimizer(step):
                self.student_engine.reset_optimizer()
            weights = WatchedWeights(self.student_engine.module) if self.spec.trainer.monitor else None
            metrics = self.train(data, loss)
            moved = cache_counts(loss.states.cache)
        finally:
            loss.states.cache.clear()
        self._loss = loss
        if self.student_engine.use_ulysses_sp:
            moved = over_sequence(moved, self.student_engine.ulysses_parallel_group, self.student_engine.device)
        if metrics is None:
            return None
        metrics |= {"sum/unshared_tokens": [float(num_left_out)], "timing/teacher_s": [teacher_s]}
        metrics |= {} if weights is None else weights.moved()
        metrics["timing/student_s"] = [time.perf_counter() - started - teacher_s - score_s]
        if selection.score != "none" or loss.old_log_probs is not None:
            metrics["timing/score_s"] = [score_s]
        metrics |= {f"{CHOICE}{name}": [value] for name, value in chosen.items()}
        return as_output(metrics | {name: [megabytes] for name, megabytes in moved.items()})

    @property
    def _sizes(self) -> dict[str, Any]:
        """Return the fields of every task of the head."""
        opd = self.opd
        return {"chunk": opd.chunk_size, "valid_vocab": self.facts.valid_vocab, "workspace_gib": opd.workspace_gib}

    def _prepare(self, data: TensorDict, step: int) -> tuple[OpdBatch, DivergenceLoss]:
        """Return the step's rows and their loss; tokens beyond the horizon and rows without weight leave the masks of `data`."""
        stage, weights = self._schedule.stage(step), self._schedule.weights_at(step)
        if (horizon := self._schedule.num_tokens(step)) is not None:
            keep_horizon(data, tokens=horizon)
        over_row = self.opd.loss_agg_mode == "seq-mean-token-mean"
        divergence, policy = term_weights(data, weights, over_row=over_row)
        has_policy = self.opd.has_policy and bool(weights.policy)
        keep_rows(data, (divergence != 0) | (policy != 0) if has_policy else divergence != 0)
        # Rows that only fill the step up train nothing; no other row may be longer than agreed.
        batch = build_opd_batch(data, max_length=max(self.opd.max_length, FILLER_TOKENS))
        rows, shown = batch.rows, tu.get_non_tensor_data(data, "shown_rows", ())
        row = rows.row_of_response_token[rows.response_mask]
        assert stage.loss_type is not None  # `Schedule` fills it in
        loss = DivergenceLoss(
            spec=self.spec,
            stage=stage,
            policy_weight=weights.policy,
            rows=rows,
            loss=loss_of(self.spec, stage, stage.loss_type),
            weights=Weights(divergence=divergence[row], policy=policy[row] if has_policy else None),
            inputs=data["advantage"][row] if has_policy else None,
            states=TeacherStates(
                cache=self.hidden_cache(self.opd.cache_gib),
                names=sorted(self.spec.teachers),
                of_rows=data["teacher"].tolist() if self.spec.teachers else None,
            ),
            options=self._sizes
            | {
                "watch": ("entropy", "teacher_entropy"),
                "student_vocab": self.facts.student_vocab,
                "teacher_vocab": self.facts.teacher_vocab,
            },
            names=row_names(data),
            view=TokenView(rows, data["row_id"].tolist(), shown) if shown else None,
        )
        return batch, loss

    def _read_teachers(self, data: TensorDict, batch: OpdBatch, loss: DivergenceLoss) -> None:
        """Fill the loss's states with what the teachers read of the trained tokens, and with their heads."""
        rows = loss.rows
        if batch.teacher_rows is not None:
            rows = replace(batch.teacher_rows, response_mask=rows.response_mask)
            data = as_teacher_reads(data, rows)
        vocab = self.facts.valid_vocab
        read_teachers(data, rows, teachers=self.teachers, reading=self.reading, states=loss.states, valid_vocab=vocab)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def read_nonfinite_rows(self) -> list[str]:
        """Return the names of this rank's rows with a token whose loss was not finite, in the last step."""
        return [] if self._loss is None else sorted(self._loss.nonfinite_rows)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def read_token_view(self) -> Seen:
        """Return what this rank saw of the last step's tokens; the step was given `shown_rows`."""
        assert self._loss is not None
        assert self._loss.view is not None
        return self._loss.view.seen
