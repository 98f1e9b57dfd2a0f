"""The OPD worker: verl's hybrid worker whose ref is the teacher, with a two-phase update (teacher, then student)."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from tensordict import TensorDict
from torch import distributed
from torch.distributed import ProcessGroup
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.trainer.ppo.padding_utils import SYNTHETIC_PADDING_SEQ_LEN
from verl.utils import tensordict_utils as tu
from verl.utils.memory_utils import aggressive_empty_cache
from verl.utils.profiler import DistProfiler
from verl.workers.config import DistillationConfig, HFModelConfig, TrainingWorkerConfig
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from opd.batch import TEACHER_PROMPTS, LossPositions, RolloutRows, build_opd_batch, loss_positions
from opd.config.run_config import RunConfig
from opd.config.sections import Teacher
from opd.importance import Schedule, choose_tokens, scored_divergence
from opd.importance.counter import step_seed
from opd.importance.micro import MicroBatchChoice
from opd.losses import DivergenceKind, token_weights
from opd.losses.vocab_parallel import vocab_shard
from opd.memory import Plan
from opd.memory.follow import worker_plan
from opd.memory.job import GIB
from opd.rollout.seeds import SeededRank
from opd.worker import engines
from opd.worker.backbone import keep_activations
from opd.worker.checkpointing import ShardUploads
from opd.worker.device import NamedDevice
from opd.worker.engines import DivergenceLoss, StudentEngine, TaskBuilder, TeacherEngine
from opd.worker.head import Choice, CollectTask, DivergenceTask, EntropyTask, HeadTask, TeacherPart
from opd.worker.self_teachers import SelfTeachers
from opd.worker.shared_teacher_cache import Holders, Regrouped
from opd.worker.signs import WatchedWeights, neighbour_signs, preference_signs, token_signs
from opd.worker.step_metrics import (
    CHOICE,
    cache_counts,
    choice_counts,
    micro_batch_counts,
    no_teacher_counts,
    over_sequence,
)
from opd.worker.teacher_cache import HiddenCache
from opd.worker.token_choice import TokenScores, choose_among_ranks, count_only, leave_out_beyond, train_only
from opd.worker.token_view import Seen, TokenView
from opd.worker.ulysses import Slice
from opd.worker.unshared_tokens import leave_out_unshared, readable_ids

READ = ("input_ids", "position_ids", "opd_row")
"""What an engine reads of rows without a gradient."""


def trained_positions(
    rows: RolloutRows, micro_batch: TensorDict, starts: torch.Tensor
) -> tuple[RolloutRows, LossPositions]:
    """The rows of a micro-batch and the hidden states that predict their trained tokens (never prompt or tool tokens)."""
    rows = rows.select(micro_batch["opd_row"].cpu()).to(starts.device)
    return rows, loss_positions(rows, row_starts=starts).trained()


def read_by_teacher(data: TensorDict) -> torch.Tensor | None:
    """Nested [B, j] int64: prompts of the teacher's own followed by the responses; None: it reads `input_ids`."""
    if TEACHER_PROMPTS not in data:
        return None
    pairs = zip(data[TEACHER_PROMPTS].unbind(), data["responses"].unbind(), strict=True)
    return torch.nested.as_nested_tensor([torch.cat(pair) for pair in pairs], layout=torch.jagged)


def as_teacher_reads(data: TensorDict, rows: RolloutRows) -> TensorDict:
    """What an engine reads of `rows`, which are those of `data` with prompts of the teacher's own."""
    read = data.select("opd_row")
    read["input_ids"], read["position_ids"] = rows.nested(rows.input_ids), rows.nested(rows.position_ids)
    return read


def row_names(data: TensorDict) -> list[str]:
    """What a person calls each row of a batch: `data row 17, sample 2`, or its place where it does not say."""
    if "index" not in data:
        return [f"row {number} of the batch" for number in range(len(data))]
    indices, samples = ([int(value) for value in data[name]] for name in ("index", "session_id"))
    return [f"data row {index}, sample {sample}" for index, sample in zip(indices, samples, strict=True)]


def vocab_group(size: int) -> ProcessGroup | None:
    """The group of `size` neighbouring ranks that this one shares the heads with (a collective call); None for 1.

    Raises:
        ValueError: the ranks do not divide into groups of that size.
    """
    if size == 1:
        return None
    world = distributed.get_world_size()
    if world % size:
        raise ValueError(f"opd.vocab_parallel_size={size}: must divide the {world} ranks")
    own: ProcessGroup = distributed.new_subgroups(size)[0]
    return own


def teacher_worker(config: TrainingWorkerConfig, teacher: Teacher, path: str) -> TrainingWorker:
    """verl's `ref_worker_cls` hook: the ref config of the actor, with the teacher's own model, dtype and offload."""
    actor_model = config.model_config
    model = HFModelConfig(
        path=path,
        load_tokenizer=False,  # the vocabularies were compared at the front door
        trust_remote_code=teacher.trust_remote_code,
        use_remove_padding=actor_model.use_remove_padding,
        override_config=dict(actor_model.override_config),
        enable_gradient_checkpointing=False,
    )
    mixed = dict(config.engine_config.mixed_precision or {})
    mixed["param_dtype"] = teacher.dtype
    engine = dataclasses.replace(
        config.engine_config,
        forward_only=False,  # true would force CPUOffloadPolicy: weights streamed over PCIe in every micro-batch
        param_offload=teacher.offload is not False,  # `auto`: on the host until the plan is made
        optimizer_offload=False,
        model_dtype=teacher.dtype,
        mixed_precision=mixed,
        strategy="fsdp2",
    )
    return TrainingWorker(
        dataclasses.replace(config, model_type=engines.TEACHER, model_config=model, engine_config=engine)
    )


def student_worker(config: TrainingWorkerConfig) -> TrainingWorker:
    """verl's `actor_worker_cls` hook: the same worker with the engine whose head computes the divergence."""
    return TrainingWorker(dataclasses.replace(config, model_type=engines.STUDENT))


class OPDWorker(SeededRank, ShardUploads, NamedDevice, ActorRolloutRefWorker):
    """Actor (student), ref (teacher) and rollout in one worker; spec and facts of the run come with the config.

    One `update_opd` runs every optimizer update of a step. Phase 1 caches the teacher's final hidden states at the loss
    positions of this rank's rows; phase 2 trains the student. `opd.importance.tokens` may leave only some tokens in the
    loss: chosen before phase 1 where no teacher is needed for it, else between the phases, or by the student's head. The
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
        ours = RunConfig.of(config)
        assert ours.distillation is not None  # `OPDTrainer` makes this worker for no other kind
        self.spec, self.facts = ours.distillation, ours.run
        self.opd, self._teacher_paths = self.spec.opd, ours.teacher_paths
        self.teachers: list[TrainingWorker] = []
        self._teacher_of: list[int] | None = None
        """Of several teachers the number of each row's own."""
        # Read now: verl takes keys out of its config on the way.
        self._student_path, self._fsdp_size = config.model.path, config.actor.fsdp_config.fsdp_size
        self.plan: Plan | None = None
        self._cache: HiddenCache | None = None
        self._holders = Holders()
        self._row_names: list[str] = []
        self._token_rows = torch.empty(0, dtype=torch.int64)
        self._nonfinite_rows: set[str] = set()
        self._vocab_group: ProcessGroup | None = None
        self._selection = self.opd.importance.tokens
        self._choice_seed = 0
        self._schedule = Schedule.of(
            self.opd,
            total_steps=config.actor.optim.total_training_steps,
            response_length=self.spec.data.max_response_length,
        )
        self._stage = self._schedule.stage(1)
        self._view: TokenView | None = None
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

    def actor_worker_cls(self, config: TrainingWorkerConfig) -> TrainingWorker:
        return student_worker(config)

    @property
    def teacher_engine(self) -> TeacherEngine:
        engine: TeacherEngine = self.ref.engine
        return engine

    @property
    def teacher_engines(self) -> list[TeacherEngine]:
        """In the order of `named_teachers`."""
        return [teacher.engine for teacher in self.teachers]

    @property
    def student_engine(self) -> StudentEngine:
        engine: StudentEngine = self.actor.engine
        return engine

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        super().init_model()
        self._check_sharing()
        for engine, path in zip(self.teacher_engines, self._teacher_paths.values(), strict=True):
            engine.check_head(f"teacher {path}")
        self.student_engine.check_head(f"student {self.config.model.path}")
        if ends := self._schedule.restarts():
            self.student_engine.restart_lr_schedule(ends, total_steps=self._schedule.total_steps)
        self._self_teachers = SelfTeachers(
            engines=dict(zip(self.spec.named_teachers, self.teacher_engines, strict=True)),
            every={key: teacher.refresh_every for key, teacher in self.spec.named_teachers.items()},
        )
        self._follow_plan()
        self._vocab_group = vocab_group(self.opd.vocab_parallel_size)
        aggressive_empty_cache(force_sync=True)  # as verl leaves it: the rollout server sizes itself by what is free

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_checkpoint(
        self, local_path: str, hdfs_path: str | None = None, global_step: int = 0, max_ckpt_to_keep: int | None = None
    ) -> None:
        super().save_checkpoint(local_path, hdfs_path, global_step, max_ckpt_to_keep)
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
        if self._selection.in_head and student > 1:
            raise ValueError(
                "opd.importance.tokens.normalize=micro: a rank that shares sequences does not see the whole micro-batch; use "
                "global, or actor.ulysses_sequence_parallel_size: 1"
            )

    def _follow_plan(self) -> None:
        """Make the memory plan and put student and teacher where it wants them.

        Both were built with what may be offloaded on the host, so nothing has to fit before the plan is made.
        """
        world, group = distributed.get_world_size(), self._fsdp_size
        self.plan = worker_plan(
            self.spec,
            student=self._student_path,
            teachers=self._teacher_paths.values(),
            num_sharing=group if 0 < group < world else world,
            device=self.teacher_engine.device,
        )
        planned = 1.0 if self.plan is None else self.plan.choice.activation_share
        keep_activations(self.opd.activation_budget or planned)
        if self.plan is None:
            return
        choice, student = self.plan.choice, self.student_engine
        if self.spec.actor.gradient_checkpointing == "auto" and not choice.checkpointing:
            student.module.gradient_checkpointing_disable()
        for engine in self.teacher_engines:
            engine.set_offload(offload_params=choice.offload_teacher, offload_optimizer=False)
        student.set_offload(offload_params=choice.offload_params, offload_optimizer=choice.offload_optimizer)
        student.defer_sync, student.keep_gathered = choice.defer_sync, choice.keep_gathered

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    @DistProfiler.annotate(color="red", role="actor_update", scheduled=True)
    def update_opd(self, data: TensorDict) -> TensorDict:
        """Every optimizer update of one step over this rank's rows.

        Args:
            data: nested `input_ids`, `position_ids`, `prompts`, `responses`, `response_mask`, `loss_mask`, in
                some steps `rollout_log_probs`; where a teacher has prompts of its own, nested `teacher_prompts` of all rows; of several teachers `teacher` [B] int64, the number of each row's in the order
                of `named_teachers`; `sample_weights` [B] fp32; `row_id` [B] int64, of no other row of the step; `seed` and
                `training_step`, by which tokens are drawn and the stage is known; `shown_rows`, numbers of the rows that
                `read_token_view` is to tell token by token (absent: it is not asked for); the batch settings of verl's
                `train_mini_batch`.

        Returns:
            No rows; `metrics`: lists of counts to be summed by `opd.worker.step_metrics.reduce`.
        """
        data["opd_row"] = torch.arange(len(data))
        step = tu.get_non_tensor_data(data, "training_step", 0)
        self._stage, horizon = self._schedule.stage(step), self._schedule.num_tokens(step)
        num_left_out = leave_out_unshared(data, self.facts.valid_vocab, read_by_teacher(data))
        if horizon is not None:
            leave_out_beyond(data, tokens=horizon, part=self.opd.horizon.part)
        # verl fills a batch up with rows of its own length, which train nothing; no other row may be longer than agreed.
        longest = max(self.opd.max_length, SYNTHETIC_PADDING_SEQ_LEN)
        batch = build_opd_batch(data, max_length=longest, sample_weights=data["sample_weights"])
        data = data.exclude(TEACHER_PROMPTS)  # the student has no use for them
        self._row_names, self._nonfinite_rows = row_names(data), set()
        rows, selection = batch.rows, self._selection
        self._self_teachers.before(step, self.student_engine)
        self._teacher_of = data["teacher"].tolist() if self.spec.teachers else None
        shown = tu.get_non_tensor_data(data, "shown_rows", ())
        self._view = TokenView(rows, data["row_id"].tolist(), shown) if shown else None
        chosen: dict[str, Any] = {}
        self._choice_seed = step_seed(tu.get_non_tensor_data(data, "seed", 0), step)
        cache = self._hidden_cache()
        started = time.perf_counter()
        try:
            if selection.score != "none" and not (selection.in_head or selection.needs_teacher):
                rows, chosen = self._choose(data, rows)
            teacher_started = time.perf_counter()
            if batch.teacher_rows is None:
                self._teacher_phase(data, rows, cache)
            else:
                seen = dataclasses.replace(batch.teacher_rows, response_mask=rows.response_mask)
                self._teacher_phase(as_teacher_reads(data, seen), seen, cache)
            heads = [engine.head_weight(self._own_entries()) for engine in self.teacher_engines]
            teacher_s = time.perf_counter() - teacher_started
            if selection.needs_teacher and not selection.in_head:
                rows, chosen = self._choose(data, rows, (cache, heads))
            if selection.in_head:
                count_only(data, rows.num_trained_tokens, selection)
            score_s = time.perf_counter() - started - teacher_s
            if self._schedule.resets_optimizer(step):
                self.student_engine.reset_optimizer()
            self.student_engine.num_updates = 0
            over_rows = self.opd.loss_agg_mode != "token-mean"
            self.actor.set_loss_fn(
                DivergenceLoss(self._task_builder(rows, cache, heads), self._counts, over_rows=over_rows)
            )
            weights = WatchedWeights(self.student_engine.module) if self.spec.trainer.monitor else None
            rate = float(self.student_engine.optimizer.param_groups[0]["lr"])
            output = self.actor.train_mini_batch(data=data)
            moved = cache_counts(cache)
        finally:
            self.actor.set_loss_fn(self.loss_fn)
            cache.clear()
            self._holders.clear()
        if self.student_engine.use_ulysses_sp:
            moved = over_sequence(moved, self.student_engine.ulysses_parallel_group, self.student_engine.device)
        if output is None:
            return None
        metrics = tu.get(output, "metrics")
        metrics["sum/unshared_tokens"] = [float(num_left_out)]
        metrics["lr_used"] = [rate]
        if weights is not None:
            metrics.update(weights.moved())
        metrics["timing/teacher_s"] = [teacher_s]
        metrics["timing/student_s"] = [time.perf_counter() - started - teacher_s - score_s]
        if selection.score != "none":
            metrics["timing/score_s"] = [score_s]
            metrics.update({f"{CHOICE}{name}": [value] for name, value in chosen.items()})
        metrics.update({name: [megabytes] for name, megabytes in moved.items()})
        return output.cpu()

    def _own_entries(self) -> slice:
        """Entries of the teacher's head that this rank needs: all, or its share of those that count."""
        group = self._vocab_group
        if group is None:
            return slice(None)
        return vocab_shard(self.facts.valid_vocab, distributed.get_rank(group), distributed.get_world_size(group))

    def _hidden_cache(self) -> HiddenCache:
        """The one cache of this worker; its pinned memory is kept from step to step."""
        if self._cache is None:
            gib = float("inf") if self.opd.cache_gib is None else self.opd.cache_gib
            if self.plan is not None and self.plan.job.device_bytes is not None:
                gib = self.plan.choice.cache_bytes / GIB
            self._cache = HiddenCache(device_gib=gib, device=self.teacher_engine.device)
        return self._cache

    @property
    def _is_sampled(self) -> bool:
        """Whether the step's trained tokens are drawn from the student's whole distribution.

        The last ones of an answer are not: where it ended decides which they are.
        """
        horizon = self.opd.horizon
        is_chosen_by_end = horizon.tokens is not None and horizon.part == "last"
        return self._stage.rollouts == "student" and not self.spec.rollout.is_truncated and not is_chosen_by_end

    @property
    def _read_tokens(self) -> int | None:
        """Tokens of a forward without a gradient on this rank; None: as many as the engine's inference settings say."""
        plan = self.plan
        if plan is not None and plan.job.score_is_planned:
            return -(-plan.choice.score_tokens // plan.job.sequence_ranks)
        return self.opd.read_tokens

    def _read_inputs(self, data: TensorDict, worker: TrainingWorker) -> TensorDict:
        """The rows as an engine reads them without a gradient, cut by tokens (a collective call), or as its inference settings say."""
        inputs = data.select(*READ)
        config, num_tokens = worker.engine_config, self._read_tokens
        if num_tokens is not None:  # a row is never cut, and verl takes one limit on all ranks
            longest = inputs["input_ids"].offsets().diff().max().to(self.student_engine.device)
            distributed.all_reduce(longest, distributed.ReduceOp.MAX)
            num_tokens = max(num_tokens, -(-int(longest) // self.spec.actor.ulysses_sequence_parallel_size))
        tu.assign_non_tensor(
            inputs,
            use_remove_padding=worker.model_config.use_remove_padding,
            use_dynamic_bsz=config.use_dynamic_bsz or num_tokens is not None,
            max_token_len_per_gpu=num_tokens or config.infer_max_token_len_per_gpu,
            micro_batch_size_per_gpu=config.infer_micro_batch_size_per_gpu,
            temperature=1.0,
        )
        return inputs

    def _teacher_phase(self, data: TensorDict, rows: RolloutRows, cache: HiddenCache) -> None:
        """Cache each teacher's hidden states of its rows' trained tokens, as far as they are this rank's."""
        for number, teacher in enumerate(self.teachers):
            some = data if self._teacher_of is None else self._rows_of(data, number, teacher)
            if some is not None:
                self._teacher_pass(some, rows, cache, number)

    def _rows_of(self, data: TensorDict, number: int, teacher: TrainingWorker) -> TensorDict | None:
        """The rows that a teacher reads: its own, and other short ones so that every rank reads equally many, in whole
        micro-batches, as collective calls need it (a collective call); None where no rank has a row of its own.
        """
        assert self._teacher_of is not None
        is_other = torch.tensor(self._teacher_of) != number
        num_rows = (~is_other).sum().to(self.student_engine.device)
        distributed.all_reduce(num_rows, distributed.ReduceOp.MAX)
        config = teacher.engine_config
        by_tokens = config.use_dynamic_bsz or self._read_tokens is not None
        size = 1 if by_tokens else config.infer_micro_batch_size_per_gpu
        if not num_rows:
            return None
        order = (is_other * data["input_ids"].offsets().diff().cpu()).argsort(stable=True)
        return tu.index_select_tensor_dict(data.select(*READ), order[: -(-int(num_rows) // size) * size])

    def _teacher_pass(self, data: TensorDict, rows: RolloutRows, cache: HiddenCache, number: int) -> None:
        """One teacher's part of `_teacher_phase`; what it reads of other teachers' rows is dropped."""
        inputs = self._read_inputs(data, self.teachers[number])
        inputs["input_ids"] = readable_ids(inputs["input_ids"], self.facts.valid_vocab)
        counts: list[int] = []

        def task_of(micro_batch: TensorDict, starts: torch.Tensor, own: Slice | None) -> CollectTask:
            mine, found = trained_positions(rows, micro_batch, starts)
            if own is None:
                counts[:] = mine.num_trained_tokens.tolist()
                return CollectTask(found.flat_index)
            counts[:] = self._holders.note(micro_batch["opd_row"].tolist(), found, own)
            return CollectTask(own.select(found)[0].flat_index)

        def take(micro_batch: TensorDict, hidden: torch.Tensor) -> None:
            for row, part in zip(micro_batch["opd_row"].tolist(), hidden.split(counts), strict=True):
                if self._teacher_of is None or self._teacher_of[row] == number:
                    cache.put(row, part)

        self.teacher_engines[number].read(inputs, task_of, take)

    def _choose(
        self, data: TensorDict, rows: RolloutRows, teacher: tuple[HiddenCache, list[torch.Tensor]] | None = None
    ) -> tuple[RolloutRows, dict[str, float]]:
        """Choose among the step's tokens and leave the others out of the loss; the rows as they are trained on, and metrics.

        Args:
            data: its masks are replaced.
            teacher: cached hidden states, of which those of the kept tokens stay, and each teacher's head; None where the student alone
                decides.
        """
        engine, counts = self.student_engine, rows.num_trained_tokens
        scores = TokenScores(counts.tolist(), engine.ulysses_parallel_group)
        if self._selection.needs_student:
            self._score(data, rows, teacher, scores)
        kept, metrics = choose_among_ranks(
            self._selection,
            data["row_id"],
            counts,
            scores.by_name(),
            seed=self._choice_seed,
            group=engine.get_data_parallel_group(),
            device=engine.device,
        )
        rank = distributed.get_rank(engine.ulysses_parallel_group) if engine.use_ulysses_sp else None
        if self._view is not None:
            self._view.chosen(kept, scores.by_name(), speaks=not rank)
        if teacher is not None:
            for row, of_row in enumerate(kept.split(counts.tolist())):
                teacher[0].keep(row, of_row if rank is None else self._holders.keep(row, of_row)[rank])
        is_trained = rows.response_mask.clone()
        is_trained[rows.response_mask] = kept.to(is_trained.device)
        train_only(data, is_trained)
        return dataclasses.replace(rows, response_mask=is_trained), metrics

    def _score(
        self,
        data: TensorDict,
        rows: RolloutRows,
        teacher: tuple[HiddenCache, list[torch.Tensor]] | None,
        scores: TokenScores,
    ) -> None:
        """One pass of the student over all rows, without a gradient."""
        build = None if teacher is None else self._task_builder(rows, *teacher)
        own_tokens: list[torch.Tensor | None] = [None]

        def task_of(micro_batch: TensorDict, starts: torch.Tensor, own: Slice | None) -> HeadTask:
            if build is not None:
                task, kind = build(micro_batch, starts, own), self._scored_kind
                assert kind is not None  # tokens chosen without a divergence are scored without the teacher
                own_tokens[:] = [task.own]
                return dataclasses.replace(task, kind=kind)
            found = trained_positions(rows, micro_batch, starts)[1]
            if own is not None:
                found, own_tokens[0] = own.select(found)
            return EntropyTask(
                positions=found.flat_index,
                temperature=self.spec.rollout.temperature,
                chunk_size=self.opd.chunk_size,
                valid_vocab=self.facts.valid_vocab,
                workspace_gib=self.opd.workspace_gib,
            )

        def take(micro_batch: TensorDict, output: Any) -> None:
            found = {"entropy": output}
            if build is not None:
                found = {"entropy": output.student_entropy, "divergence": output.scored_divergence}
            scores.take(micro_batch["opd_row"].tolist(), own_tokens[0], **found)

        self.student_engine.read(self._read_inputs(data, self.actor), task_of, take)

    @property
    def _scored_kind(self) -> DivergenceKind | None:
        """The divergence that tokens are chosen by; None: by none."""
        loss_type = self._stage.loss_type
        assert loss_type is not None  # `Schedule` fills it in
        return scored_divergence(self._selection.score, loss_type) if self._selection.needs_teacher else None

    def _teacher_parts(
        self, numbers: list[int], counts: torch.Tensor, cache: HiddenCache, heads: list[torch.Tensor]
    ) -> Iterator[TeacherPart]:
        """What each teacher that has a row in a micro-batch has read of it.

        Args:
            numbers: [B] of the micro-batch's rows. counts: [B] their trained tokens.
        """
        assert self._teacher_of is not None
        own = torch.tensor([self._teacher_of[row] for row in numbers])
        of_token = own.repeat_interleave(counts.cpu())
        for number in own.unique().tolist():
            places = (own == number).nonzero()[:, 0].tolist()
            yield TeacherPart(
                name=sorted(self.spec.teachers)[number],
                rows=tuple(places),
                tokens=(of_token == number).nonzero()[:, 0].to(counts.device),
                hidden=cache.fetch([numbers[place] for place in places]),
                weight=heads[number],
            )

    def _task_builder(self, rows: RolloutRows, cache: HiddenCache, heads: list[torch.Tensor]) -> TaskBuilder:
        opd, facts, stage = self.opd, self.facts, self._stage
        loss_type = stage.loss_type
        assert loss_type is not None  # `Schedule` fills it in
        temperature = self.spec.rollout.temperature
        selection = self._selection

        def build(micro_batch: TensorDict, starts: torch.Tensor, own: Slice | None) -> DivergenceTask:
            mine, found = trained_positions(rows, micro_batch, starts)
            # Asked for here, before the backbone's forward is queued: copies from the host run beside it.
            numbers, is_own = micro_batch["opd_row"].tolist(), None
            teacher: dict[str, Any]
            if self._teacher_of is None:
                hidden = cache.fetch(numbers)
                teacher = {"teacher_hidden": hidden, "teacher_weight": heads[0]}
            else:
                teacher = {"parts": tuple(self._teacher_parts(numbers, mine.num_trained_tokens, cache, heads))}
            if own is not None:
                needed = own.holders(found.flat_index).cpu()
                teacher["teacher_hidden"] = Regrouped(hidden, self._holders.of(numbers), needed, own)
                found, is_own = own.select(found)
            row_weights = mine.sample_weights
            assert row_weights is not None  # `update_opd` puts them on every batch
            if opd.loss_agg_mode == "seq-mean-token-mean":
                counts = torch.stack([mask.sum() for mask in micro_batch["loss_mask"].unbind()])
                row_weights = row_weights / counts.clamp(min=1)
            self._token_rows, choice = found.row, None
            if selection.in_head:
                row_ids = micro_batch["row_id"][found.row]
                choose = functools.partial(choose_tokens, selection, row_ids, seed=self._choice_seed)
                # Its numbers are read before the backbone's forward is queued, so that the head waits for no host.
                whole = self._teacher_of is None and self._vocab_group is None
                held = MicroBatchChoice(selection, row_ids, seed=self._choice_seed) if whole else None
                choice = Choice(choose=choose, kind=self._scored_kind, held=held)
            return DivergenceTask(
                positions=found.flat_index,
                token_ids=found.token_ids,
                token_weights=token_weights(found.mask, row_index=found.row, row_weights=row_weights),
                **teacher,
                kind=loss_type,
                beta=stage.beta or 0.0,  # only a jsd has one, and reads it
                temperature=temperature,
                chunk_size=opd.chunk_size,
                valid_vocab=facts.valid_vocab,
                student_vocab=facts.student_vocab,
                teacher_vocab=facts.teacher_vocab,
                workspace_gib=opd.workspace_gib,
                vocab_group=self._vocab_group,
                own=is_own,
                choice=choice,
            )

        return build

    def _counts(
        self, micro_batch: TensorDict, task: DivergenceTask, output: Any, *, first_update: bool
    ) -> dict[str, float]:
        counts = no_teacher_counts(self.spec.teachers)  # every rank has the same, whatever rows it has
        counts |= micro_batch_counts(micro_batch, task, output, first_update=first_update)
        if self.spec.trainer.monitor:
            counts |= self._signs(micro_batch, task, output, is_sampled=first_update and self._is_sampled)
        if task.choice is not None:
            counts |= choice_counts(task.choice)
        if self._view is not None:
            self._view.trained(micro_batch["opd_row"].tolist(), task, output)
        if counts["sum/nonfinite"]:
            token_rows = self._token_rows if task.choice is None else self._token_rows[task.choice.kept[0]]
            rows = micro_batch["opd_row"].cpu()[token_rows.cpu()[output.nonfinite.cpu()]]
            self._nonfinite_rows |= {self._row_names[row] for row in rows.unique().tolist()}
        return counts

    def _signs(
        self, micro_batch: TensorDict, task: DivergenceTask, output: Any, *, is_sampled: bool
    ) -> dict[str, float]:
        """What the monitor of silent faults reads."""
        counts = token_signs(task, output, is_sampled=is_sampled) | neighbour_signs(task)
        if task.own is None and "row_score" in micro_batch:
            token_rows = self._token_rows if task.choice is None else self._token_rows[task.choice.kept[0]]
            counts |= preference_signs(token_rows, micro_batch["row_score"], output)
        return counts

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def tell_plan(self) -> Plan | None:
        """The memory plan that this rank follows; None: there is none."""
        return self.plan

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def read_nonfinite_rows(self) -> list[str]:
        """Names of this rank's rows with a token whose loss was not finite, in the last step."""
        return sorted(self._nonfinite_rows)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def read_token_view(self) -> Seen:
        """What this rank saw of the last step's tokens; the step was given `shown_rows`."""
        assert self._view is not None
        return self._view.seen
