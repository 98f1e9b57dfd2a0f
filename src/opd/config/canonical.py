"""Computes the canonical form of a spec and the hash of its identity."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from opd.config.kinds import BaseSpec
from opd.config.pipeline import FOLDER
from opd.config.tree import drop_path

# What may change between two attempts of the same run: labels, places, length, rhythm, logging, and memory knobs that a
# person turns after an out-of-memory error. nnodes and gpus_per_node stay in: a checkpoint's shards belong to a world size.
NOT_IDENTITY: tuple[str, ...] = (
    "name",
    "env",
    "store",
    "output",
    "checkpoint",
    "stages",  # a pipeline's: each stage is a run with an identity of its own
    "model.name",
    "data.num_workers",
    "data.train_ratio",
    "rollout.gpu_memory_utilization",
    "rollout.free_cache_engine",
    "rollout.enforce_eager",
    "rollout.max_num_seqs",
    "rollout.max_num_batched_tokens",
    "rollout.logprobs_every",
    "rollout.num_agent_workers",
    "actor.gradient_checkpointing",
    "actor.param_offload",
    "actor.optimizer_offload",
    "actor.torch_compile",
    "actor.ppo_micro_batch_size_per_gpu",
    "actor.log_prob_micro_batch_size_per_gpu",
    "actor.ppo_max_token_len_per_gpu",
    "actor.log_prob_max_token_len_per_gpu",
    "teacher.offload",
    "opd.chunk_size",
    "opd.cache_gib",
    "opd.workspace_gib",
    "opd.activation_budget",
    "opd.read_tokens",
    "opd.train_tokens",
    "opd.gpu_memory_gib",
    "opd.max_unshared_mass",
    "opd.num_kept_rollouts",
    "reward.num_workers",
    "eval.save_generations",
    "convert.target",
    "convert.trust_remote_code",
    "convert.verify",
    "trainer.loggers",
    "trainer.project",
    "trainer.master_port",
    "trainer.total_epochs",
    "trainer.total_steps",
    "trainer.save_freq",
    "trainer.test_freq",
    "trainer.val_before_train",
    "trainer.max_skipped_updates",
    "trainer.stall_floor_s",
    "trainer.stall_factor",
    "trainer.monitor",
    "trainer.resume",
)


def dump_spec(spec: BaseSpec) -> dict[str, Any]:
    """The spec as plain JSON values, every default written out, unset optional keys left out.

    `parse_tree(dump_spec(spec)).spec == spec`.
    """
    return spec.model_dump(mode="json", exclude_none=True)


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no blanks: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def identity(spec: BaseSpec) -> dict[str, Any]:
    """The part of the spec that makes two runs the same experiment, for hashing and for a readable diff.

    What a stage of a pipeline reads of earlier ones is named by its place in the pipeline's store, which may move.
    """
    tree = dump_spec(spec)
    if (store := f"{spec.store.url.rstrip('/')}/").endswith(f"/{FOLDER}/"):
        tree = _named_within(store, tree)
    for path in NOT_IDENTITY:
        drop_path(tree, path)
    for teacher in tree.get("teachers", {}).values():
        drop_path(teacher, "offload")
    return tree


def _named_within(store: str, value: Any) -> Any:
    """A copy of a tree with what lies in the store named by its place there."""
    if isinstance(value, dict):
        return {key: _named_within(store, item) for key, item in value.items()}
    if isinstance(value, list):
        return [_named_within(store, item) for item in value]
    return f"{FOLDER}:{value[len(store) :]}" if isinstance(value, str) and value.startswith(store) else value


def spec_hash(spec: BaseSpec) -> str:
    """SHA-256 (hex) of the canonical JSON of `identity(spec)`."""
    return hashlib.sha256(canonical_json(identity(spec)).encode()).hexdigest()
