"""The memory plan's job of a spec: before anything starts, and in the worker."""

import math
from dataclasses import replace
from typing import Any

from opd.experiment import GrpoSpec, SftSpec, TrainSpec
from opd.experiment.algorithm import Opd, Stage
from opd.experiment.kinds import DistillationSpec
from opd.head_form import WORKSPACE_GIB, Need, form_of
from opd.memory.job import GIB, Job, Wish
from opd.shapes import ModelShape

MOST_READ_TOKENS = 32_768
"""Of one forward without a gradient: an 8B teacher's gathering, 6 % of its time at 8,700 tokens, is 1.5 % of it there."""
MOST_TRAIN_TOKENS = 32_768
"""Of one micro-batch, unless a row is longer: beyond it nothing is left to win."""
ONE_UNIT_PARAMS = 300_000_000
"""Parameters up to which a lone rank's student is one FSDP unit. The hooks of more units cost more time than their memory is worth."""
HOST_LAYER_S = 5e-3
"""Seconds that the host needs to launch a compiled layer's forward and backward; an uncompiled layer takes twice as long."""
TRAINED_OPERATIONS = 0.62 * 666e12
"""Operations a second of a student's forward and backward on an H200."""
HOST_SHARE = 2
"""How many times as long as the host a GPU computes on a micro-batch that a plan wishes for; it goes down to once."""
ENTRY_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
_SETTINGS = Opd.model_construct()


def is_one_unit(num_params: int, *, num_ranks: int, is_lora: bool) -> bool:
    """Return True if FSDP gathers and reduces all of a student's weights at once."""
    return num_ranks == 1 and not is_lora and num_params <= ONE_UNIT_PARAMS


def update_settings(spec: TrainSpec) -> Opd:
    """Return the sizes of an update; a kind without a teacher has no keys for them and takes the defaults."""
    return spec.opd if isinstance(spec, DistillationSpec) else _SETTINGS


def most_read_tokens(spec: TrainSpec) -> int | None:
    """Return the most tokens of one forward without a gradient on one rank. None means that verl's keys cut it."""
    return None if spec.reads_by_actor else update_settings(spec).read_tokens or MOST_READ_TOKENS


def most_train_tokens(spec: TrainSpec) -> int | None:
    """Return the most tokens of one micro-batch of the student on one rank. None means that verl's keys cut it."""
    return None if spec.update_by_actor else update_settings(spec).train_tokens or MOST_TRAIN_TOKENS


def job_from_spec(
    spec: TrainSpec,
    student: ModelShape,
    *teacher_shapes: ModelShape,
    device_bytes: int | None,
    capability: tuple[int, int] | None = None,
    num_sharing: int | None = None,
) -> Job:
    """Return the job of one rank, with every row and response as long as the spec allows.

    Args:
        teacher_shapes: of the models that only read: teachers in the order of `named_teachers`, or the reference of GRPO.
        capability: of the CUDA device. None means that it is not known, and the head's compiled form is planned.
        num_sharing: ranks that share the weights. None means all.
    """
    opd, actor, data, on_gpu = update_settings(spec), spec.actor, spec.data, spec.device == "cuda"
    teachers = list(spec.named_teachers.values()) if isinstance(spec, DistillationSpec) else []
    dtypes = [teacher.dtype for teacher in teachers] or [actor.dtype] * len(teacher_shapes)
    checkpointing, lora = _wish(actor.gradient_checkpointing), spec.model.lora
    of_server: dict[str, Any] = {}
    if not isinstance(spec, SftSpec):
        rollout = spec.rollout  # an extra argument of vLLM's engine wins over the key of the same name
        share = float(rollout.engine_kwargs.get("gpu_memory_utilization", rollout.gpu_memory_utilization))
        of_server = {"rollout_share": share if on_gpu else 0.0, "rollout_ranks": rollout.tensor_parallel_size}
        of_server["rollout_sleeps"] = rollout.free_cache_engine
    longest_prompt = max((teacher.max_prompt_length or data.max_prompt_length for teacher in teachers), default=0)
    job = Job(
        student=student,
        teachers=tuple(zip(teacher_shapes, (ENTRY_BYTES[dtype] for dtype in dtypes), strict=True)),
        num_ranks=num_sharing or spec.num_ranks,
        sequence_ranks=spec.num_sharing,
        adapter_params=None if lora is None else student.adapter_params(lora.rank, lora.target_modules),
        compute_bytes=ENTRY_BYTES[actor.dtype],
        keeps_hidden=not isinstance(spec, GrpoSpec) or spec.grpo.kl_loss_type == "full",
        row_tokens=spec.row_length,
        response_tokens=data.max_response_length,
        teacher_row_tokens=(longest_prompt or data.max_prompt_length) + data.max_response_length,
        rows_per_step=-(-spec.step_rows // spec.num_groups),
        mini_rows=-(-actor.ppo_mini_batch_size * spec.num_samples // spec.num_groups),
        train_tokens=0,
        score_is_planned=bool(teacher_shapes) and not spec.reads_by_actor and opd.read_tokens is None,
        checkpointing=True if checkpointing is None and on_gpu and not spec.is_packed else checkpointing,
        compiled=actor.torch_compile and on_gpu,
        workspace_bytes=_workspace_bytes(spec, frozenset({actor.dtype, *dtypes}), capability) if on_gpu else 0,
        device_bytes=device_bytes,
        offload_teacher=_wish(teachers[0].offload) if teachers else None,
        offload_params=_wish(actor.param_offload),
        offload_optimizer=_wish(actor.optimizer_offload),
        **of_server,
    )
    train, least = _micro_batches(spec, job)
    score = _score_tokens(spec, job) if teacher_shapes else 0
    return replace(job, train_tokens=train, least_train_tokens=least, score_tokens=score)


def _micro_batches(spec: TrainSpec, job: Job) -> tuple[int, int | None]:
    """Return the tokens of a micro-batch, and the tokens to which the plan may lower them if it may.

    They are the spec's, or as many as keep the device busy where work goes with the tokens, or by verl's keys.
    """
    rows, most = job.mini_rows * job.row_tokens, most_train_tokens(spec)
    if most is None:
        actor = spec.actor
        budget = actor.ppo_max_token_len_per_gpu * job.sequence_ranks
        micro = budget if actor.use_dynamic_bsz else actor.ppo_micro_batch_size_per_gpu * job.row_tokens
        return min(rows, micro), None

    def cut(num_tokens: int) -> int:
        """Return a number that is no shorter than a row and no longer than all rows of an update."""
        return min(rows, max(job.row_tokens, num_tokens))

    most *= job.sequence_ranks
    if update_settings(spec).train_tokens is not None:
        return cut(most), None
    least = min(most, _host_bound_tokens(job) * job.sequence_ranks)
    return cut(min(most, HOST_SHARE * least)), cut(least)


def _host_bound_tokens(job: Job) -> int:
    """Return the tokens of a micro-batch that a GPU trains on while the host launches it."""
    host_s = HOST_LAYER_S * (1 if job.compiled else 2)
    # Each weight's products: the output, the input's gradient, and the weight's gradient, which a frozen model has not.
    num_products = 3 if job.adapter_params is None else 2
    return math.ceil(TRAINED_OPERATIONS * host_s / (2.0 * num_products * job.student.visited_params))


def _score_tokens(spec: TrainSpec, job: Job) -> int:
    """Return the tokens of the largest forward without a gradient, over the ranks that share a sequence."""
    actor, most = spec.actor, most_read_tokens(spec)
    if most is not None:
        budget = max(most * job.sequence_ranks, job.teacher_row_tokens)
    elif actor.use_dynamic_bsz:
        budget = actor.log_prob_max_token_len_per_gpu * job.sequence_ranks
    else:
        budget = actor.log_prob_micro_batch_size_per_gpu * job.teacher_row_tokens
    return min(job.rows_per_step * job.teacher_row_tokens, budget)


def _workspace_bytes(spec: TrainSpec, dtypes: frozenset[str], capability: tuple[int, int] | None) -> int:
    """Return the bytes for logits of the largest form that a step of the run takes on a CUDA device."""
    opd = update_settings(spec)
    terms = {"divergence"} if isinstance(spec, DistillationSpec) else {"policy"}
    terms |= {"policy"} if opd.has_policy else set()
    kinds = {stage.loss_type or opd.loss_type for stage in opd.stages or (Stage(),)}
    forms = [form_of(Need(kind, 0, frozenset(terms), dtypes, capability or (0, 0))) for kind in kinds]
    return int((opd.workspace_gib or max(WORKSPACE_GIB[form] for form in forms)) * GIB)


def _wish(value: bool | str) -> Wish:
    return value if isinstance(value, bool) else None
