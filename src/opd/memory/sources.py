"""The memory plan's job of a spec: before anything starts, and in the worker."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

from opd.experiment import GrpoSpec, OpdAgentSpec, OpdSpec, SftSpec, TrainSpec
from opd.experiment.algorithm import Opd, Stage
from opd.head_form import WORKSPACE_GIB, Need, form_of
from opd.memory.job import GIB, Job, Wish
from opd.memory.shapes import ModelShape

MOST_READ_TOKENS = 32_768
"""Of one forward without a gradient: an 8B teacher's gathering, 6 % of its time at 8,700 tokens, is 1.5 % of it there."""
MOST_TRAIN_TOKENS = 32_768
"""Of one micro-batch, unless a row is longer: beyond it nothing is left to win."""
ONE_UNIT_PARAMS = 300_000_000
"""Parameters up to which a lone rank's student is one FSDP unit: the hooks of more units cost the host more than their memory is worth."""


def is_one_unit(num_params: int, *, num_ranks: int, is_lora: bool) -> bool:
    """Return True if FSDP gathers and reduces all of a student's weights at once."""
    return num_ranks == 1 and not is_lora and num_params <= ONE_UNIT_PARAMS


HOST_LAYER_S = 5e-3
"""Seconds that the host needs to launch a compiled layer's forward and backward; an uncompiled layer takes twice as long."""
TRAINED_OPERATIONS = 0.62 * 666e12
"""Operations a second of a student's forward and backward on an H200."""
HOST_SHARE = 2
"""How many times as long as the host a GPU computes on a micro-batch that a plan wishes for; it goes down to once."""
ENTRY_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


_SETTINGS = Opd.model_construct()


def update_settings(spec: TrainSpec) -> Opd:
    """Return the sizes of an update; a kind without a teacher has no keys for them and takes the defaults."""
    return spec.opd if isinstance(spec, OpdSpec | OpdAgentSpec) else _SETTINGS


def has_reference(spec: TrainSpec) -> bool:
    """Return True if a GRPO run loads the model that it began with a second time, for its KL; adapters can be left out instead."""
    return isinstance(spec, GrpoSpec) and spec.grpo.kl_loss_coef > 0 and spec.model.lora is None


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
    opd, actor, on_gpu, is_packed = update_settings(spec), spec.actor, spec.device == "cuda", spec.is_packed
    teachers = list(spec.named_teachers.values()) if isinstance(spec, OpdSpec | OpdAgentSpec) else []
    dtypes = [teacher.dtype for teacher in teachers] or [actor.dtype] * len(teacher_shapes)
    checkpointing = _wish(actor.gradient_checkpointing)
    job = _with_micro_batches(_alone(spec, student, device_bytes=device_bytes), spec)
    job = replace(
        job,
        num_ranks=num_sharing or job.num_ranks,
        checkpointing=True if checkpointing is None and on_gpu and not is_packed else checkpointing,
        activation_share=opd.activation_budget if actor.torch_compile and on_gpu else 1.0,
        compiled=actor.torch_compile and on_gpu,
        workspace_bytes=_workspace_bytes(spec, {actor.dtype, *dtypes}, capability if on_gpu else None),
        chunk_rows=opd.chunk_size,
        memory_key="opd.gpu_memory_gib" if teachers else "",
    )
    if not isinstance(spec, SftSpec):
        job = replace(
            job,
            rollout_share=_server_share(spec) if on_gpu else 0.0,
            rollout_cache_bytes=_server_cache_bytes(spec),
            rollout_sleeps=spec.rollout.free_cache_engine,
            rollout_ranks=spec.rollout.tensor_parallel_size,
        )
    if not teacher_shapes:
        return job
    widths = [ENTRY_BYTES[dtype] for dtype in dtypes]
    prompts = [teacher.max_prompt_length or spec.data.max_prompt_length for teacher in teachers]
    row_tokens = max(prompts, default=spec.data.max_prompt_length) + spec.data.max_response_length
    return replace(
        job,
        teacher=teacher_shapes[0],
        teacher_bytes=widths[0],
        more_teachers=tuple(zip(teacher_shapes[1:], widths[1:], strict=True)),
        teacher_row_tokens=row_tokens,
        keeps_hidden=not isinstance(spec, GrpoSpec) or spec.grpo.kl_loss_type == "full",
        score_tokens=_score_tokens(spec, job.rows_per_step, row_tokens),
        score_is_planned=not spec.reads_by_actor and opd.read_tokens is None,
        cache_bytes=_bytes(opd.cache_gib),
        offload_teacher=_wish(teachers[0].offload) if teachers else None,
    )


def _workspace_bytes(spec: TrainSpec, dtypes: Collection[str], capability: tuple[int, int] | None) -> int:
    """Return the bytes for logits of the largest form that a step of the run takes. 0 means the plain form, on a CPU."""
    if spec.device != "cuda":
        return 0
    opd = update_settings(spec)
    losses = [(opd.loss_type, {"policy"})]
    if isinstance(spec, OpdSpec | OpdAgentSpec):
        losses = []
        for stage in opd.stages or (Stage(),):
            policy = max(opd.policy.weight, stage.policy_weight or 0.0)
            losses.append((stage.loss_type or opd.loss_type, {"divergence"} | ({"policy"} if policy else set())))
    device = capability or (0, 0)
    forms = [form_of(Need(kind, 0, frozenset(terms), frozenset(dtypes), device)) for kind, terms in losses]
    return int((opd.workspace_gib or max(WORKSPACE_GIB[form] for form in forms)) * GIB)


def _server_share(spec: OpdSpec | OpdAgentSpec | GrpoSpec) -> float:
    """What vLLM is given: an extra argument of its engine wins over the key of the same name."""
    return float(spec.rollout.engine_kwargs.get("gpu_memory_utilization", spec.rollout.gpu_memory_utilization))


def _server_cache_bytes(spec: OpdSpec | OpdAgentSpec | GrpoSpec) -> int | None:
    """vLLM's `kv_cache_memory_bytes`, which takes the place of its share."""
    given = spec.rollout.engine_kwargs.get("kv_cache_memory_bytes")
    return None if given is None else int(given)


def _with_micro_batches(job: Job, spec: TrainSpec) -> Job:
    """By the spec's tokens, or as many as keep the device busy where work goes with the tokens; else by verl's keys."""
    most = most_train_tokens(spec)
    if most is None:
        return job
    most *= job.sequence_ranks
    if update_settings(spec).train_tokens is not None:
        return replace(job, train_tokens=_cut(job, most))
    least = min(most, host_bound_tokens(job, compiled=spec.actor.torch_compile) * job.sequence_ranks)
    return replace(job, train_tokens=_cut(job, min(most, HOST_SHARE * least)), least_train_tokens=_cut(job, least))


def host_bound_tokens(job: Job, *, compiled: bool) -> int:
    """Return the tokens of a micro-batch that a GPU trains on while the host launches it."""
    host_s = job.student.layers * HOST_LAYER_S * (1 if compiled else 2)
    return math.ceil(TRAINED_OPERATIONS * host_s / (2.0 * job.num_products * job.student.backbone_params))


def _cut(job: Job, num_tokens: int) -> int:
    """No shorter than a row and no longer than all rows of an update."""
    return min(job.mini_rows * job.row_tokens, max(job.row_tokens, num_tokens))


def _alone(spec: TrainSpec, model: ModelShape, *, device_bytes: int | None) -> Job:
    """Return the job of one rank that trains the model, without a teacher and a rollout server."""
    actor, sequence_ranks = spec.actor, spec.actor.ulysses_sequence_parallel_size
    num_samples = 1 if isinstance(spec, SftSpec) else spec.rollout.num_samples
    num_ranks = spec.trainer.nnodes * spec.trainer.gpus_per_node
    num_groups = max(1, num_ranks // sequence_ranks)
    row_tokens = spec.data.max_prompt_length + spec.data.max_response_length
    mini_rows = -(-actor.ppo_mini_batch_size * num_samples // num_groups)
    return Job(
        student=model,
        teacher=None,
        num_ranks=num_ranks,
        sequence_ranks=sequence_ranks,
        adapter_params=_adapter_params(spec, model),
        compute_bytes=ENTRY_BYTES[actor.dtype],
        row_tokens=row_tokens,
        response_tokens=spec.data.max_response_length,
        rows_per_step=-(-spec.data.train_batch_size * num_samples // num_groups),
        train_tokens=_micro_batch(
            mini_rows,
            row_tokens,
            actor.ppo_micro_batch_size_per_gpu,
            actor.use_dynamic_bsz,
            actor.ppo_max_token_len_per_gpu * sequence_ranks,
        ),
        score_tokens=0,
        mini_rows=mini_rows,
        checkpointing=actor.gradient_checkpointing is not False,
        workspace_bytes=0,
        device_bytes=device_bytes,
        samples=not isinstance(spec, SftSpec),
        one_unit=is_one_unit(model.num_params, num_ranks=num_ranks, is_lora=spec.model.lora is not None),
        copies_checkpoints=spec.checkpoint.overlap,
        offload_params=_wish(actor.param_offload),
        offload_optimizer=_wish(actor.optimizer_offload),
    )


def _adapter_params(spec: TrainSpec, student: ModelShape) -> int | None:
    lora = spec.model.lora
    return None if lora is None else student.adapter_params(lora.rank, lora.target_modules)


def most_read_tokens(spec: TrainSpec) -> int | None:
    """Tokens of one forward without a gradient on one rank, at most; None: it is cut as verl's keys say."""
    return None if spec.reads_by_actor else update_settings(spec).read_tokens or MOST_READ_TOKENS


def most_train_tokens(spec: TrainSpec) -> int | None:
    """Tokens of one micro-batch of the student on one rank, at most; None: it is cut as verl's keys say."""
    return None if spec.update_by_actor else update_settings(spec).train_tokens or MOST_TRAIN_TOKENS


def _score_tokens(spec: TrainSpec, rows: int, row_tokens: int) -> int:
    """Tokens of the largest forward without a gradient, over the ranks that share a sequence."""
    actor = spec.actor
    sequence_ranks = actor.ulysses_sequence_parallel_size
    most = most_read_tokens(spec)
    if most is None:
        budget = actor.log_prob_max_token_len_per_gpu * sequence_ranks
        return _micro_batch(rows, row_tokens, actor.log_prob_micro_batch_size_per_gpu, actor.use_dynamic_bsz, budget)
    budget = max(most * sequence_ranks, row_tokens)
    return _micro_batch(rows, row_tokens, 0, True, budget)


def _micro_batch(rows: int, row_tokens: int, micro_rows: int, dynamic: bool, budget: int) -> int:
    """Tokens of the largest micro-batch: a token budget, or rows at their longest; never more than there are."""
    most = rows * row_tokens
    return min(most, budget if dynamic else micro_rows * row_tokens)


def _bytes(gib: float | None) -> int | None:
    return None if gib is None else int(gib * GIB)


def _wish(value: bool | str) -> Wish:
    return value if isinstance(value, bool) else None
