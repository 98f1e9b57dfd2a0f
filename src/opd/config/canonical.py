"""Computes the canonical form of a spec and the hash of its identity."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from opd.config.kinds import BaseSpec
from opd.config.pipeline import FOLDER
from opd.config.tree import MISSING, drop_path, get_path

# What may change between two attempts of the same run: labels, places, length, rhythm, logging, and memory knobs that a
# person turns after an out-of-memory error. nnodes and gpus_per_node stay in: a checkpoint's shards belong to a world size.
NOT_IDENTITY: tuple[str, ...] = (
    "spec_version",
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
    "trainer.log_val_generations",
    "trainer.master_port",
    "trainer.profiler",
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

# Identity keys that a later version added, with the value under which a run is what it was before the key existed. At that
# value a key is left out of the identity, so that a run begun with an older version resumes under this one.
ADDED_SINCE: dict[str, Any] = {
    "opd.importance.tokens.score": "none",
    "opd.importance.tokens.ratio": 0.5,
    "opd.importance.tokens.mode": "topk",
    "opd.importance.tokens.scope": "rollout",
    "opd.importance.tokens.position": "first",
    "opd.importance.tokens.entropy_clip_q": 0.98,
    "opd.importance.problems.weights": "none",
    "opd.importance.problems.alpha": 1.0,
    "opd.importance.problems.beta": 1.0,
    "opd.importance.problems.drop": True,
    "opd.importance.problems.recompute.at_stages": False,
    "opd.importance.problems.recompute.num_samples": 8,
    "opd.loss_agg_mode": "token-mean",
    "opd.divergence_weight": 1.0,
    "opd.policy.weight": 0.0,
    "opd.policy.clip_ratio_low": 0.2,
    "opd.policy.clip_ratio_high": 0.2,
    "opd.policy.clip_ratio_c": 3.0,
    "opd.policy.norm_adv_by_std": True,
    "opd.stages": [],
    "opd.horizon.applies": "train",
    "teachers": {},
    "route.by": "data_source",
    "route.to": {},
    "data.split.of": 2,
    "data.split.seed": 42,
    "teacher.refresh_every": 0,
    "rollout.schedule": "strict",
    "rollout.keep_prefixes": False,
}

WEIGHT_SCHEDULE = "constant"
"""A stage's, likewise."""


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
        if teacher["refresh_every"] == ADDED_SINCE["teacher.refresh_every"]:
            drop_path(teacher, "refresh_every")
    for stage in tree.get("opd", {}).get("stages", []):
        if stage["weight_schedule"] == WEIGHT_SCHEDULE:
            drop_path(stage, "weight_schedule")
    for path, as_before in ADDED_SINCE.items():
        if get_path(tree, path) in (as_before, MISSING):
            drop_path(tree, path, emptied=True)
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
