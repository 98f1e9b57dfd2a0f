"""Gathers the facts of a memory plan: from a spec before anything starts, or from the running worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opd.config import OpdAgentSpec, OpdSpec
from opd.memory.job import GIB, Job, Wish
from opd.memory.shapes import ModelShape

ENTRY_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "bfloat16": 2, "float16": 2, "float32": 4}


def job_from_spec(
    spec: OpdSpec | OpdAgentSpec, student: ModelShape, teacher: ModelShape, *, device_bytes: int | None
) -> Job:
    """The job of one rank, with every row and response as long as the spec allows."""
    actor, sequence_ranks = spec.actor, spec.actor.ulysses_sequence_parallel_size
    num_ranks = spec.trainer.nnodes * spec.trainer.gpus_per_node
    num_groups = max(1, num_ranks // sequence_ranks)
    row_tokens = spec.data.max_prompt_length + spec.data.max_response_length
    rows = -(-spec.data.train_batch_size * spec.rollout.num_samples // num_groups)
    mini_rows = -(-actor.ppo_mini_batch_size * spec.rollout.num_samples // num_groups)
    on_gpu = spec.device == "cuda"
    return Job(
        student=student,
        teacher=teacher,
        num_ranks=num_ranks,
        sequence_ranks=sequence_ranks,
        vocab_ranks=spec.opd.vocab_parallel_size,
        compute_bytes=ENTRY_BYTES[actor.dtype],
        teacher_bytes=ENTRY_BYTES[spec.teacher.dtype],
        row_tokens=row_tokens,
        response_tokens=spec.data.max_response_length,
        rows_per_step=rows,
        train_tokens=_micro_batch(
            mini_rows,
            row_tokens,
            actor.ppo_micro_batch_size_per_gpu,
            actor.use_dynamic_bsz,
            actor.ppo_max_token_len_per_gpu * sequence_ranks,
        ),
        score_tokens=_micro_batch(
            rows,
            row_tokens,
            actor.log_prob_micro_batch_size_per_gpu,
            actor.use_dynamic_bsz,
            actor.log_prob_max_token_len_per_gpu * sequence_ranks,
        ),
        mini_rows=mini_rows,
        checkpointing=actor.gradient_checkpointing,
        activation_share=spec.opd.activation_budget if actor.torch_compile and on_gpu else 1.0,
        fused=on_gpu and "fp32" not in (actor.dtype, spec.teacher.dtype),
        workspace_bytes=int(spec.opd.workspace_gib * GIB),
        chunk_rows=spec.opd.chunk_size,
        rollout_share=spec.rollout.gpu_memory_utilization if on_gpu else 0.0,
        rollout_sleeps=spec.rollout.free_cache_engine,
        rollout_ranks=spec.rollout.tensor_parallel_size,
        cache_bytes=_bytes(spec.opd.cache_gib),
        device_bytes=device_bytes,
        offload_teacher=_wish(spec.teacher.offload),
        offload_params=_wish(actor.param_offload),
        offload_optimizer=_wish(actor.optimizer_offload),
    )


def job_from_config(
    config: Mapping[str, Any],
    student: ModelShape,
    teacher: ModelShape,
    *,
    num_ranks: int,
    on_gpu: bool,
    device_bytes: int | None,
) -> Job:
    """The job of one rank from `actor_rollout_ref` with its group `opd` (plain values, interpolations resolved)."""
    actor, ref, rollout, opd = (config[name] for name in ("actor", "ref", "rollout", "opd"))
    sequence_ranks = int(actor["ulysses_sequence_parallel_size"])
    num_groups = max(1, num_ranks // sequence_ranks)
    row_tokens = int(opd["max_length"])
    rows = -(-int(opd["train_batch_size"]) * int(rollout["n"]) // num_groups)
    mini_rows = -(-int(actor["ppo_mini_batch_size"]) * int(rollout["n"]) // num_groups)
    fsdp, decides = actor["fsdp_config"], list(opd["plan_decides"])
    group = int(fsdp["fsdp_size"])
    width = ENTRY_BYTES[str((fsdp.get("mixed_precision") or {}).get("param_dtype", "bf16"))]
    teacher_width = ENTRY_BYTES[str(opd["teacher"]["dtype"])]
    return Job(
        student=student,
        teacher=teacher,
        num_ranks=group if 0 < group < num_ranks else num_ranks,
        sequence_ranks=sequence_ranks,
        vocab_ranks=int(opd["vocab_parallel_size"]),
        compute_bytes=width,
        teacher_bytes=teacher_width,
        row_tokens=row_tokens,
        response_tokens=int(rollout["response_length"]),
        rows_per_step=rows,
        train_tokens=_micro_batch(
            mini_rows,
            row_tokens,
            int(actor["ppo_micro_batch_size_per_gpu"] or 1),
            bool(actor["use_dynamic_bsz"]),
            int(actor["ppo_max_token_len_per_gpu"]) * sequence_ranks,
        ),
        score_tokens=_micro_batch(
            rows,
            row_tokens,
            int(ref["log_prob_micro_batch_size_per_gpu"] or 1),
            bool(ref["log_prob_use_dynamic_bsz"]),
            int(ref["log_prob_max_token_len_per_gpu"]) * sequence_ranks,
        ),
        mini_rows=mini_rows,
        checkpointing=bool(config["model"]["enable_gradient_checkpointing"]),
        activation_share=float(opd["activation_budget"]) if fsdp["use_torch_compile"] and on_gpu else 1.0,
        fused=on_gpu and width == teacher_width == 2,
        workspace_bytes=int(float(opd["workspace_gib"]) * GIB),
        chunk_rows=int(opd["chunk_size"]),
        rollout_share=float(rollout["gpu_memory_utilization"]) if on_gpu else 0.0,
        rollout_sleeps=bool(rollout["free_cache_engine"]),
        rollout_ranks=int(rollout["tensor_model_parallel_size"]),
        cache_bytes=_bytes(opd["cache_gib"]),
        device_bytes=device_bytes,
        offload_teacher=None if "teacher" in decides else bool(opd["teacher"]["offload"]),
        offload_params=None if "params" in decides else bool(fsdp["param_offload"]),
        offload_optimizer=None if "optimizer" in decides else bool(fsdp["optimizer_offload"]),
    )


def _micro_batch(rows: int, row_tokens: int, micro_rows: int, dynamic: bool, budget: int) -> int:
    """Tokens of the largest micro-batch: a token budget, or rows at their longest; never more than there are."""
    most = rows * row_tokens
    return min(most, budget if dynamic else micro_rows * row_tokens)


def _bytes(gib: float | None) -> int | None:
    return None if gib is None else int(float(gib) * GIB)


def _wish(value: bool | str) -> Wish:
    return value if isinstance(value, bool) else None
