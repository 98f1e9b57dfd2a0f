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


def policy_worker(config: TrainingWorkerConfig) -> TrainingWorker:
    """Return verl's worker with the engine that knows our attention, for the actor and the reference of GRPO."""
    return TrainingWorker(dataclasses.replace(config, model_type=engines.POLICY))


def student_worker(config: TrainingWorkerConfig) -> TrainingWorker:
    """verl's `actor_worker_cls` hook: the same worker with the engine whose head computes the divergence."""
    return TrainingWorker(dataclasses.replace(config, model_type=engines.STUDENT))
