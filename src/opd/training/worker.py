"""The OPD worker: verl's hybrid worker whose ref is the teacher, with a two-phase update (teacher, then student)."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from torch import distributed
from torch.distributed import ProcessGroup
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.trainer.ppo.padding_utils import SYNTHETIC_PADDING_SEQ_LEN
from verl.utils import tensordict_utils as tu
from verl.utils.memory_utils import aggressive_empty_cache
from verl.utils.profiler import DistProfiler
from verl.workers.config import HFModelConfig, TrainingWorkerConfig
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from opd.batch import LossPositions, RolloutRows, build_opd_batch, loss_positions
from opd.losses import token_weights
from opd.losses.vocab_parallel import vocab_shard
from opd.training import engines
from opd.training.checkpointing import ShardUploads
from opd.training.engines import DivergenceLoss, StudentEngine, TeacherEngine
from opd.training.head import DivergenceTask
from opd.training.hidden_cache import HiddenCache
from opd.training.residency import Plan
from opd.training.residency.follow import worker_plan
from opd.training.residency.job import GIB
from opd.training.seeds import SeededRank
from opd.training.shared_hidden import Holders, Regrouped
from opd.training.step_counts import cache_counts, micro_batch_counts, over_sequence
from opd.training.trunk import keep_activations
from opd.training.ulysses import Slice
from opd.training.unshared import leave_out_unshared, readable_ids


def trained_positions(
    rows: RolloutRows, micro_batch: TensorDict, starts: torch.Tensor
) -> tuple[RolloutRows, LossPositions]:
    """The rows of a micro-batch and the hidden states that predict their trained tokens (never prompt or tool tokens)."""
    rows = rows.select(micro_batch["opd_row"].cpu()).to(starts.device)
    return rows, loss_positions(rows, row_starts=starts).trained()


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
    return distributed.new_subgroups(size)[0]


def teacher_worker(config: TrainingWorkerConfig, teacher: DictConfig) -> TrainingWorker:
    """verl's `ref_worker_cls` hook: the ref config of the actor, with the teacher's own model, dtype and offload."""
    actor_model = config.model_config
    model = HFModelConfig(
        path=teacher.path,
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
        param_offload=teacher.offload,
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


class OPDWorker(SeededRank, ShardUploads, ActorRolloutRefWorker):
    """Actor (student), ref (teacher) and rollout in one worker; `config.opd` is the trainer's `opd` group.

    One `update_opd` runs every optimizer update of a step. Phase 1 caches the teacher's final hidden states at the loss
    positions of this rank's rows; phase 2 trains the student. The residency plan says what is on the device when: with
    room everything, else the teacher's trunk only in phase 1 and the student's only in phase 2, while the teacher's head
    stays for phase 2.
    """

    def __init__(self, config: DictConfig, role: str, distillation_config=None, **kwargs):
        super().__init__(config=config, role=role, distillation_config=distillation_config, **kwargs)
        self.opd = config.opd
        self._facts: Any = OmegaConf.to_container(config, resolve=True)  # verl takes keys out of it on the way
        self.plan: Plan | None = None
        self.residency: list[dict[str, str | int]] = []
        self._cache: HiddenCache | None = None
        self._holders = Holders()
        self._row_names: list[str] = []
        self._token_rows = torch.empty(0, dtype=torch.int64)
        self._nonfinite_rows: set[str] = set()
        self._vocab_group: ProcessGroup | None = None

    def ref_worker_cls(self, config: TrainingWorkerConfig) -> TrainingWorker:
        return teacher_worker(config, self.opd.teacher)

    def actor_worker_cls(self, config: TrainingWorkerConfig) -> TrainingWorker:
        return student_worker(config)

    @property
    def teacher_engine(self) -> TeacherEngine:
        return self.ref.engine

    @property
    def student_engine(self) -> StudentEngine:
        return self.actor.engine

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self):
        keep_activations(float(self.opd.activation_budget))
        # verl hands its actor config to `omega_conf_to_dataclass`, which knows no `opd` group: it is ours alone.
        super().init_model()
        self._check_sharing()
        self.teacher_engine.check_head(f"teacher {self.opd.teacher.path}")
        self.student_engine.check_head(f"student {self.config.model.path}")
        self._follow_plan()
        self._vocab_group = vocab_group(int(self.opd.vocab_parallel_size))
        aggressive_empty_cache(force_sync=True)  # as verl leaves it: the rollout server sizes itself by what is free

    def _check_sharing(self) -> None:
        student, teacher = (e.ulysses_sequence_parallel_size for e in (self.student_engine, self.teacher_engine))
        if student != teacher:
            raise ValueError(
                f"actor_rollout_ref.ref.ulysses_sequence_parallel_size={teacher}: student and teacher must share sequences "
                f"alike, the actor's is {student}; remove the override"
            )

    def _follow_plan(self) -> None:
        """Make the residency plan and put student and teacher where it wants them.

        Both were built with what may be offloaded on the host, so nothing has to fit before the plan is made.
        """
        self.plan = worker_plan(self._facts, self.teacher_engine.device)
        if self.plan is None:
            return
        choice, student = self.plan.choice, self.student_engine
        self.teacher_engine.set_residency(offload_params=choice.offload_teacher, offload_optimizer=False)
        student.set_residency(offload_params=choice.offload_params, offload_optimizer=choice.offload_optimizer)
        student.defer_sync, student.keep_gathered = choice.defer_sync, choice.keep_gathered

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    @DistProfiler.annotate(color="red", role="actor_update", scheduled=True)
    def update_opd(self, data: TensorDict) -> TensorDict:
        """Every optimizer update of one step over this rank's rows.

        Args:
            data: nested `input_ids`, `position_ids`, `prompts`, `responses`, `response_mask`, `loss_mask`,
                `rollout_log_probs`; `sample_weights` [B] fp32; the batch settings of verl's `train_mini_batch`.

        Returns:
            No rows; `metrics`: lists of counts to be summed by `opd.training.step_counts.reduce`.
        """
        data["opd_row"] = torch.arange(len(data))
        num_left_out = leave_out_unshared(data, int(self.opd.valid_vocab))
        # verl fills a batch up with rows of its own length, which train nothing; no other row may be longer than agreed.
        longest = max(int(self.opd.max_length), SYNTHETIC_PADDING_SEQ_LEN)
        batch = build_opd_batch(data, max_length=longest, sample_weights=data["sample_weights"])
        self._row_names, self._nonfinite_rows = row_names(data), set()
        cache = self._hidden_cache()
        started = time.perf_counter()
        try:
            self._teacher_phase(data, batch.rows, cache)
            head = self.teacher_engine.head_weight(self._own_entries())
            teacher_s = time.perf_counter() - started
            self.student_engine.num_updates = 0
            self.actor.set_loss_fn(DivergenceLoss(self._task_builder(batch.rows, cache, head), self._counts))
            output = self.actor.train_mini_batch(data=data)
            moved = cache_counts(cache)
        finally:
            self.actor.set_loss_fn(self.loss_fn)
            cache.clear()
            self._holders.clear()
        if self.student_engine.use_ulysses_sp:
            moved = over_sequence(moved, self.student_engine.ulysses_parallel_group, self.student_engine.device)
        self._note_residency("done")
        if output is None:
            return None
        metrics = tu.get(output, "metrics")
        metrics["sum/unshared_tokens"] = [float(num_left_out)]
        metrics["timing/teacher_s"] = [teacher_s]
        metrics["timing/student_s"] = [time.perf_counter() - started - teacher_s]
        metrics.update({name: [megabytes] for name, megabytes in moved.items()})
        return output.cpu()

    def _own_entries(self) -> slice:
        """Entries of the teacher's head that this rank needs: all, or its share of those that count."""
        group = self._vocab_group
        if group is None:
            return slice(None)
        return vocab_shard(int(self.opd.valid_vocab), distributed.get_rank(group), distributed.get_world_size(group))

    def _hidden_cache(self) -> HiddenCache:
        """The one cache of this worker; its pinned memory is kept from step to step."""
        if self._cache is None:
            gib = float("inf") if self.opd.cache_gib is None else float(self.opd.cache_gib)
            if self.plan is not None and self.plan.job.device_bytes is not None:
                gib = self.plan.choice.cache_bytes / GIB
            self._cache = HiddenCache(device_gib=gib, device=self.teacher_engine.device)
        return self._cache

    def _teacher_phase(self, data: TensorDict, rows: RolloutRows, cache: HiddenCache) -> None:
        inputs = data.select("input_ids", "position_ids", "opd_row")
        inputs["input_ids"] = readable_ids(inputs["input_ids"], int(self.opd.valid_vocab))
        config = self.ref.engine_config
        tu.assign_non_tensor(
            inputs,
            use_remove_padding=self.ref.model_config.use_remove_padding,
            use_dynamic_bsz=config.use_dynamic_bsz,
            max_token_len_per_gpu=config.infer_max_token_len_per_gpu,
            micro_batch_size_per_gpu=config.infer_micro_batch_size_per_gpu,
            temperature=1.0,
        )
        engine = self.teacher_engine

        def positions_of(
            micro_batch: TensorDict, starts: torch.Tensor, own: Slice | None
        ) -> tuple[torch.Tensor, list[int]]:
            mine, found = trained_positions(rows, micro_batch, starts)
            if not self.residency or self.residency[-1]["phase"] != "teacher":
                self._note_residency("teacher")
            if own is None:
                return found.flat_index, mine.num_trained_tokens.tolist()
            counts = self._holders.note(micro_batch["opd_row"].tolist(), found, own)
            return own.select(found)[0].flat_index, counts

        engine.collect_hidden(inputs, positions_of, cache)

    def _task_builder(self, rows: RolloutRows, cache: HiddenCache, teacher_weight: torch.Tensor):
        opd = self.opd
        temperature = float(self.config.rollout.temperature)

        def build(micro_batch: TensorDict, starts: torch.Tensor, own: Slice | None) -> DivergenceTask:
            mine, found = trained_positions(rows, micro_batch, starts)
            if self.residency[-1]["phase"] != "student":
                self._note_residency("student", teacher_head=teacher_weight)
            # Asked for here, before the trunk's forward is queued: copies from the host run beside it.
            numbers, is_own = micro_batch["opd_row"].tolist(), None
            hidden = cache.fetch(numbers)
            if own is not None:
                needed = own.holders(found.flat_index).cpu()
                hidden = Regrouped(hidden, self._holders.of(numbers), needed, own)
                found, is_own = own.select(found)
            self._token_rows = found.row
            return DivergenceTask(
                positions=found.flat_index,
                token_ids=found.token_ids,
                token_weights=token_weights(found.mask, row_index=found.row, row_weights=mine.sample_weights),
                teacher_hidden=hidden,
                teacher_weight=teacher_weight,
                kind=opd.loss_type,
                beta=float(opd.beta),
                temperature=temperature,
                chunk_size=int(opd.chunk_size),
                valid_vocab=int(opd.valid_vocab),
                student_vocab=int(opd.student_vocab or 0),
                teacher_vocab=int(opd.teacher_vocab or 0),
                workspace_gib=float(opd.workspace_gib),
                vocab_group=self._vocab_group,
                own=is_own,
            )

        return build

    def _counts(
        self, micro_batch: TensorDict, task: DivergenceTask, output: Any, *, first_update: bool
    ) -> dict[str, float]:
        counts = micro_batch_counts(micro_batch, task, output, first_update=first_update)
        if counts["sum/nonfinite"]:
            rows = micro_batch["opd_row"].cpu()[self._token_rows.cpu()[output.nonfinite.cpu()]]
            self._nonfinite_rows |= {self._row_names[row] for row in rows.unique().tolist()}
        return counts

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def read_nonfinite_rows(self) -> list[str]:
        """Names of this rank's rows with a token whose loss was not finite, in the last step."""
        return sorted(self._nonfinite_rows)

    def _note_residency(self, phase: str, **extra: torch.Tensor) -> None:
        """Remember where each part lives in this phase ("offloaded" = parked on the host by the engine)."""
        note: dict[str, str | int] = {"phase": phase}
        for name, engine in (("teacher_trunk", self.teacher_engine), ("student_trunk", self.student_engine)):
            active = engine.mode is not None or not engine.is_param_offload_enabled
            note[name] = "device" if active else "offloaded"
            note[f"{name}_device"] = next(engine.module.parameters()).device.type
        note.update({name: tensor.device.type for name, tensor in extra.items()})
        if self.teacher_engine.device.type == "cuda":
            note["allocated_bytes"] = torch.cuda.memory_allocated()
        self.residency.append(note)
        del self.residency[:-6]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def read_residency(self) -> list[dict[str, str | int]]:
        """Where the parameters were in the last phases, and what was allocated then: what became of the plan."""
        return list(self.residency)
