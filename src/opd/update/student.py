"""The worker of every kind that trains: a student under the memory plan, models that only read, and the updates of a step.

Alone it fine-tunes on given answers: the tokens' negative log-likelihood is its one term. Other kinds have another loss.
"""

import gc
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch._functorch.config as functorch
from omegaconf import DictConfig
from tensordict import TensorDict
from torch import Tensor, distributed
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.utils import tensordict_utils as tu
from verl.utils.debug import marked_timer
from verl.utils.memory_utils import aggressive_empty_cache
from verl.utils.profiler import DistProfiler
from verl.utils.torch_functional import allgather_dict_into_dict
from verl.workers.config import HFModelConfig, TrainingWorkerConfig
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from opd.batch.builder import rows_from_batch
from opd.batch.rows import RolloutRows
from opd.compat import vllm_ranks
from opd.experiment import TrainSpec
from opd.experiment.run_config import RunConfig
from opd.experiment.sections import Teacher
from opd.losses import Loss, Weights
from opd.memory.follow import read_tokens, train_tokens, worker_plan
from opd.memory.job import GIB
from opd.memory.plan import Plan
from opd.memory.sources import update_settings
from opd.rollout.rows import IDS, LOG_PROBS
from opd.rollout.seeds import seed_rank
from opd.update.engines import STUDENT, TEACHER, StudentEngine, TeacherEngine
from opd.update.head import HeadLoss
from opd.update.reading import read_statistics
from opd.update.shards import ShardUploads
from opd.update.teacher_cache import HiddenCache

UNUSED_BY_LOSSES = (
    "prompts", "responses", "sample_weights", "row_id", "teacher", "advantage", IDS, LOG_PROBS
)  # fmt: skip
"""Columns that no loss reads of a micro-batch: each costs the host two cuts of all rows."""

vllm_ranks.register()


class StudentWorker(ShardUploads, ActorRolloutRefWorker):
    """verl's hybrid worker whose actor computes its loss in its head; the memory plan says what is on the device when."""

    reader_role = "teacher"
    """The name of the models that only read."""
    readers: Sequence[TeacherEngine] = ()

    def __init__(self, config: DictConfig, *args: Any, **kwargs: Any):
        super().__init__(config, *args, **kwargs)
        seed_rank(int(config.actor.fsdp_config.seed), self.rank)
        self.ours = RunConfig.of(config)
        self.spec: TrainSpec = self.ours.trained
        self.copies_saves = self.ours.checkpoint.overlap
        # Read now, because verl takes keys out of its config.
        self.student_path, self._fsdp_size = config.model.path, config.actor.fsdp_config.fsdp_size
        self.plan: Plan | None = None

    @property
    def read_models(self) -> list[Teacher]:
        """Return the models that only read, each with its local path."""
        return []

    def actor_worker_cls(self, config: TrainingWorkerConfig) -> TrainingWorker:
        """Return verl's worker with the engine whose head computes the loss."""
        return TrainingWorker(replace(config, model_type=STUDENT))

    def ref_worker_cls(self, config: TrainingWorkerConfig) -> TrainingWorker:
        """Return the first model that only reads. The others are built after it, each whole before the next."""
        first, *others = (_reading_worker(config, model) for model in self.read_models)
        for other in others:
            other.reset()  # as verl does with the first
        self.readers = [each.engine for each in (first, *others)]
        return first

    @property
    def student_engine(self) -> StudentEngine:
        engine: StudentEngine = self.actor.engine
        return engine

    @property
    def sizes(self) -> dict[str, Any]:
        """Return the sizes of every task of the head."""
        settings = update_settings(self.spec)
        return {"chunk": settings.chunk_size, "workspace_gib": settings.workspace_gib}

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        super().init_model()
        self.check_models()
        self._follow_plan()
        aggressive_empty_cache(force_sync=True)  # the rollout server sizes itself by what is free
        gc.freeze()  # models and compiled code stay for good: a full collection need not visit them in the middle of a step

    def check_models(self) -> None:
        """Refuse models that this worker cannot train or read (a collective call)."""
        self.student_engine.check(f"student {self.student_path}")
        for engine, model in zip(self.readers, self.read_models, strict=True):
            engine.check(f"{self.reader_role} {model.path}")
            engine.release()

    def _follow_plan(self) -> None:
        """Make the memory plan and put every model in its place; until then all that may is on the host."""
        world, group, spec = distributed.get_world_size(), self._fsdp_size, self.spec
        student = self.student_engine
        self.plan = worker_plan(
            spec,
            student=self.student_path,
            teachers=[model.path for model in self.read_models],
            num_sharing=group if 0 < group < world else world,
            device=student.device,
        )
        # Layers that are compiled from now on keep about this share of what their backward needs, and recompute the cheapest.
        functorch.activation_memory_budget = 1.0 if self.plan is None else self.plan.choice.activation_share
        for engine in (student, *self.readers):
            engine.read_tokens = read_tokens(spec, self.plan)
        cache_gib = math.inf if self.plan is None else self.plan.choice.cache_bytes / GIB
        self.cache = HiddenCache(device_gib=cache_gib, device=student.device)
        if self.plan is None:
            return
        choice = self.plan.choice
        if spec.actor.gradient_checkpointing == "auto" and not choice.checkpointing:
            student.module.gradient_checkpointing_disable()
        for engine in self.readers:
            engine.set_offload(offload_params=choice.offload_teacher)
        student.set_offload(offload_params=choice.offload_params, offload_optimizer=choice.offload_optimizer)
        student.defer_sync, student.keep_gathered = choice.defer_sync, choice.keep_gathered

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    @DistProfiler.annotate(color="red", role="actor_update", scheduled=True)
    def update_actor(self, data: TensorDict) -> TensorDict | None:
        """Make every optimizer update of one step over this rank's rows; return no rows, and lists of counts as `metrics`.

        Args:
            data: nested `input_ids`, `position_ids`, `prompts`, `responses`, `response_mask`, `loss_mask`, in some steps
                `rollout_log_probs`; the batch settings of verl's `train_mini_batch`, and what the kind adds.
        """
        data["opd_row"] = torch.arange(len(data))  # so that a micro-batch finds its rows again
        timing: dict[str, float] = {}
        try:
            metrics = self.make_updates(data, timing)
        finally:
            self.cache.clear()
        if metrics is None:
            return None
        return as_output(metrics | {f"timing/{name}": [seconds] for name, seconds in timing.items()})

    def make_updates(self, data: TensorDict, timing: dict[str, float]) -> dict[str, Any] | None:
        """Read what the loss needs, and `train` with it; arguments and result as of `train`. Here the loss is -log p of the answers."""
        rows = rows_from_batch(data)
        weights = Weights(nll=torch.ones(int(rows.response_mask.sum())))
        return self.train(
            data, HeadLoss(rows=rows, loss=Loss(), weights=weights, options={"sizes": self.sizes}), timing
        )

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def measure_loss(self, data: TensorDict) -> TensorDict | None:
        """Measure the loss on rows of given answers, without a gradient; no rows, and `metrics` for `totals`."""
        engine = self.student_engine
        data["opd_row"] = torch.arange(len(data))
        loss = HeadLoss(rows=rows_from_batch(data), loss=Loss(), options={"sizes": self.sizes})
        log_probs = read_statistics(data, loss, ("log_prob",), engine)["log_prob"].double()
        counts = {"sum/loss": [-log_probs.sum().item()], "sum/tokens": [float(len(log_probs))]}
        of_ranks = allgather_dict_into_dict(counts, engine.get_data_parallel_group())
        return as_output(of_ranks) if engine.is_mp_src_rank_with_outputs() else None

    def old_log_probs(self, data: TensorDict, rows: RolloutRows, timing: dict[str, float]) -> Tensor | None:
        """Return log-probabilities [T] of the trained tokens, where a step has several updates."""
        mini_batch, epochs = (int(tu.get_non_tensor_data(data, name, 1)) for name in ("mini_batch_size", "epochs"))
        if len(data) * self.student_engine.get_data_parallel_size() // mini_batch * epochs <= 1:
            return None
        with marked_timer("score_s", timing):
            return self.read_log_probs(data, rows, self.student_engine)

    def read_log_probs(self, data: TensorDict, rows: RolloutRows, engine: StudentEngine | TeacherEngine) -> Tensor:
        """Return a model's log-probabilities [T] of the trained tokens."""
        temperature = self.ours.sampling.rollout.temperature
        loss = HeadLoss(rows=rows, loss=Loss(temperature=temperature), options={"sizes": self.sizes})
        return read_statistics(data, loss, ("log_prob",), engine)["log_prob"]

    def train(self, data: TensorDict, loss: HeadLoss, timing: dict[str, float]) -> dict[str, Any] | None:
        """Make every optimizer update of a step over this rank's rows, and note the seconds in `timing` (a collective call).

        Return lists of counts for `opd.update.step_metrics`, None on a rank for which another one speaks.
        """
        spec, student = self.spec, self.student_engine
        student.num_updates = 0
        rate = float(student.optimizer.param_groups[0]["lr"])
        if (num_tokens := train_tokens(spec, self.plan)) is not None:
            num_tokens = student.at_least_a_row(num_tokens, data)
            tu.assign_non_tensor(data, use_dynamic_bsz=True, max_token_len_per_gpu=num_tokens)
        if student.is_row_alone:
            tu.assign_non_tensor(data, use_dynamic_bsz=False, micro_batch_size_per_gpu=1)
        self.actor.set_loss_fn(loss)
        with marked_timer("student_s", timing):
            output = self.actor.train_mini_batch(data=data.exclude(*UNUSED_BY_LOSSES))
        self.actor.set_loss_fn(None)
        if output is None:
            return None
        metrics: dict[str, Any] = tu.get(output, "metrics")
        return metrics | {"lr_used": [rate]}

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def tell_device(self) -> str:
        """Return the name of this rank's GPU, `CPU` without one."""
        return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


def _reading_worker(config: TrainingWorkerConfig, reader: Teacher) -> TrainingWorker:
    """Return a worker whose model only reads: verl's config of the reference with a model, dtype and offload of its own."""
    actor_model = config.model_config
    model = HFModelConfig(
        path=reader.path,
        load_tokenizer=False,  # the vocabularies were compared at the front door
        trust_remote_code=reader.trust_remote_code,
        use_remove_padding=actor_model.use_remove_padding,
        override_config=dict(actor_model.override_config),
        enable_gradient_checkpointing=False,
    )
    engine = replace(
        config.engine_config,
        forward_only=False,  # true would force CPUOffloadPolicy: weights streamed over PCIe in every micro-batch
        param_offload=reader.offload is not False,
        optimizer_offload=False,
        model_dtype=reader.dtype,
        mixed_precision=dict(config.engine_config.mixed_precision or {}) | {"param_dtype": reader.dtype},
        strategy="fsdp2",
    )
    return TrainingWorker(replace(config, model_type=TEACHER, model_config=model, engine_config=engine))


def as_output(metrics: dict[str, Any]) -> TensorDict:
    """Return counts in the form that verl gathers from its ranks."""
    return tu.get_tensordict(tensor_dict={}, non_tensor_dict={"metrics": metrics}).cpu()
