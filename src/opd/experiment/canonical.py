"""Computes the canonical form of a spec and the hash of its identity."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from opd.experiment.kinds import BaseSpec
from opd.experiment.tree import drop_path

# Keys that may change between two attempts of a run: labels, places, length, rhythm and logging. Memory settings too:
# a person changes them after an out-of-memory error. nnodes and gpus_per_node stay in: shards belong to a world size.
_NOT_IDENTITY = {
    "": ("name", "env", "store", "output", "checkpoint", "stages"),
    "model": ("name",),
    "data": ("num_workers", "train_ratio"),
    "rollout": ("gpu_memory_utilization", "free_cache_engine", "enforce_eager", "max_num_seqs",
                "max_num_batched_tokens", "logprobs_every", "num_agent_workers"),
    "actor": ("gradient_checkpointing", "param_offload", "optimizer_offload", "torch_compile",
              "ppo_micro_batch_size_per_gpu", "log_prob_micro_batch_size_per_gpu", "ppo_max_token_len_per_gpu",
              "log_prob_max_token_len_per_gpu", "cut_updates", "cut_reads"),
    "teacher": ("offload",),
    "opd": ("chunk_size", "cache_gib", "workspace_gib", "activation_budget", "read_tokens", "train_tokens",
            "gpu_memory_gib", "max_unshared_mass", "num_kept_rollouts"),
    "reward": ("num_workers",),
    "eval": ("save_generations",),
    "convert": ("target", "trust_remote_code", "verify"),
    "trainer": ("loggers", "project", "master_port", "total_epochs", "total_steps", "save_freq", "test_freq",
                "val_before_train", "max_skipped_updates", "stall_floor_s", "stall_factor", "monitor", "resume"),
}  # fmt: skip
NOT_IDENTITY = tuple(f"{section}.{key}".lstrip(".") for section, keys in _NOT_IDENTITY.items() for key in keys)


def dump_spec(spec: BaseSpec) -> dict[str, Any]:
    """Return the spec as plain JSON values, every default written out, unset optional keys left out.

    `parse_tree(dump_spec(spec)).spec == spec`.
    """
    return spec.model_dump(mode="json", exclude_none=True)


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys and no blanks: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def identity(spec: BaseSpec) -> dict[str, Any]:
    """Return the part of the spec that makes two runs the same experiment, for hashing and for a readable diff."""
    tree = dump_spec(spec)
    for path in NOT_IDENTITY:
        drop_path(tree, path)
    for teacher in tree.get("teachers", {}).values():
        drop_path(teacher, "offload")
    return tree


def spec_hash(spec: BaseSpec) -> str:
    """Return the SHA-256 (hex) of the canonical JSON of `identity(spec)`."""
    return hashlib.sha256(canonical_json(identity(spec)).encode()).hexdigest()
