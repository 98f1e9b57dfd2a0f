"""verl's training workers with our engines, and the mixin that names a rank's device."""

from __future__ import annotations

import dataclasses

import torch
from verl.single_controller.base.decorator import Dispatch, register
from verl.workers.config import HFModelConfig, TrainingWorkerConfig
from verl.workers.engine_workers import TrainingWorker

from opd.config.sections import Teacher
from opd.worker import engines


class NamedDevice:
    """Mixin of workers, before verl's."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def tell_device(self) -> str:
        """`NVIDIA H200`; `CPU` without a GPU."""
        return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


def teacher_worker(config: TrainingWorkerConfig, teacher: Teacher, path: str) -> TrainingWorker:
    """Return a teacher by verl's `ref_worker_cls` hook; while there is no plan, it waits on the host where it may."""
    return reading_worker(
        config,
        path=path,
        trust_remote_code=teacher.trust_remote_code,
        dtype=teacher.dtype,
        is_offloaded=teacher.offload is not False,
    )


def reading_worker(
    config: TrainingWorkerConfig, *, path: str, trust_remote_code: bool, dtype: str, is_offloaded: bool
) -> TrainingWorker:
    """Return a worker whose model only reads: verl's config of the reference with a model, dtype and offload of its own."""
    actor_model = config.model_config
    model = HFModelConfig(
        path=path,
        load_tokenizer=False,  # the vocabularies were compared at the front door
        trust_remote_code=trust_remote_code,
        use_remove_padding=actor_model.use_remove_padding,
        override_config=dict(actor_model.override_config),
        enable_gradient_checkpointing=False,
    )
    engine = dataclasses.replace(
        config.engine_config,
        forward_only=False,  # true would force CPUOffloadPolicy: weights streamed over PCIe in every micro-batch
        param_offload=is_offloaded,
        optimizer_offload=False,
        model_dtype=dtype,
        mixed_precision=dict(config.engine_config.mixed_precision or {}) | {"param_dtype": dtype},
        strategy="fsdp2",
    )
    return TrainingWorker(
        dataclasses.replace(config, model_type=engines.TEACHER, model_config=model, engine_config=engine)
    )


def served_worker(config: TrainingWorkerConfig) -> TrainingWorker:
    """Return verl's worker of a model that is only served, with the engine that knows our attention."""
    return TrainingWorker(dataclasses.replace(config, model_type=engines.SERVED))


def student_worker(config: TrainingWorkerConfig) -> TrainingWorker:
    """verl's `actor_worker_cls` hook: the same worker with the engine whose head computes the divergence."""
    return TrainingWorker(dataclasses.replace(config, model_type=engines.STUDENT))
