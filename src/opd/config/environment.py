"""Applies the original's environment variables to a spec: which key each one overrides, and for which kinds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opd.config.base import FILE_KINDS, Kind, Section
from opd.config.defaults import ASKS, DISTILS, RUNS, SAMPLES, TRAINS
from opd.config.errors import Problem
from opd.config.raw import parse_value
from opd.config.tree import field_at, set_path

_GRPO: tuple[Kind, ...] = ("grpo",)
_AGENT: tuple[Kind, ...] = ("opd-agent",)
_CONVERT: tuple[Kind, ...] = ("convert",)


@dataclass(frozen=True)
class Variable:
    """An environment variable, the spec path it overrides, and the kinds that read it."""

    name: str
    path: str
    kinds: tuple[Kind, ...]


@dataclass(frozen=True)
class Applied:
    """A variable that was applied: `value` is the parsed value now in the spec."""

    name: str
    path: str
    value: Any


VARIABLES: tuple[Variable, ...] = (
    Variable("MODEL_PATH", "model.path", RUNS),
    Variable("MODEL_NAME", "model.name", RUNS),
    Variable("DATA_DIR", "data.dir", RUNS),
    Variable("TRAIN_BATCH_SIZE", "data.train_batch_size", RUNS),
    Variable("MAX_PROMPT_LENGTH", "data.max_prompt_length", RUNS),
    Variable("MAX_RESPONSE_LENGTH", "data.max_response_length", RUNS),
    Variable("LEARNING_RATE", "actor.learning_rate", TRAINS),
    Variable("PPO_MINI_BATCH_SIZE", "actor.ppo_mini_batch_size", RUNS),
    Variable("PPO_MICRO_BATCH_SIZE_PER_GPU", "actor.ppo_micro_batch_size_per_gpu", RUNS),
    Variable("LOG_PROB_MICRO_BATCH_SIZE_PER_GPU", "actor.log_prob_micro_batch_size_per_gpu", RUNS),
    Variable("TOTAL_EPOCHS", "trainer.total_epochs", TRAINS),
    Variable("SAVE_FREQ", "trainer.save_freq", TRAINS),
    Variable("TEST_FREQ", "trainer.test_freq", TRAINS),
    Variable("VAL_BEFORE_TRAIN", "trainer.val_before_train", TRAINS),
    Variable("TP_SIZE", "rollout.tensor_parallel_size", SAMPLES),
    Variable("ROLLOUT_NTP_SIZE", "rollout.tensor_parallel_size", SAMPLES),
    Variable("GPU_MEMORY_UTIL", "rollout.gpu_memory_utilization", SAMPLES),
    Variable("ROLLOUT_N", "rollout.num_samples", SAMPLES),
    Variable("TEMPERATURE", "rollout.temperature", SAMPLES),
    Variable("TOP_P", "rollout.top_p", SAMPLES),
    Variable("TOP_K", "rollout.top_k", SAMPLES),
    Variable("VAL_N", "rollout.val.num_samples", SAMPLES),
    Variable("VAL_TEMPERATURE", "rollout.val.temperature", SAMPLES),
    Variable("VAL_TOP_P", "rollout.val.top_p", SAMPLES),
    Variable("VAL_TOP_K", "rollout.val.top_k", SAMPLES),
    Variable("RUN_ID", "name", FILE_KINDS),
    Variable("OUTPUT_ROOT", "output.root", FILE_KINDS),
    Variable("MASTER_PORT", "trainer.master_port", RUNS),
    Variable("KL_LOSS_COEF", "grpo.kl_loss_coef", _GRPO),
    Variable("KL_LOSS_TYPE", "grpo.kl_loss_type", _GRPO),
    Variable("CLIP_RATIO_LOW", "grpo.clip_ratio_low", _GRPO),
    Variable("CLIP_RATIO_HIGH", "grpo.clip_ratio_high", _GRPO),
    Variable("CLIP_RATIO_C", "grpo.clip_ratio_c", _GRPO),
    Variable("USE_DYNAMIC_BSZ", "actor.use_dynamic_bsz", RUNS),
    Variable("LOSS_AGG_MODE", "grpo.loss_agg_mode", _GRPO),
    Variable("ENTROPY_COEFF", "grpo.entropy_coeff", _GRPO),
    Variable("DAPO_TRAIN_RATIO", "data.train_ratio", _GRPO),
    Variable("TEACHER_MODEL_PATH", "teacher.path", DISTILS),
    Variable("OPD_LOSS_TYPE", "opd.loss_type", DISTILS),
    Variable("OPD_CHUNK_SIZE", "opd.chunk_size", DISTILS),
    Variable("OPD_MAX_LENGTH", "opd.max_length", DISTILS),
    Variable("OPD_REWARD_BETA", "opd.reward_beta", DISTILS),
    Variable("ENABLE_THINKING", "data.enable_thinking", RUNS),
    Variable("DATABASE_DIR", "agent.database_dir", _AGENT),
    Variable("ENABLE_TOOLS", "agent.enable_tools", _AGENT),
    Variable("MAX_ASSISTANT_TURNS", "agent.max_assistant_turns", _AGENT),
    Variable("MAX_TOOL_RESPONSE_LENGTH", "agent.max_tool_response_length", _AGENT),
    Variable("TOOL_FORMAT", "agent.tool_format", _AGENT),
    Variable("TOOL_CONFIG_PATH", "agent.tool_config_path", _AGENT),
    Variable("AGENT_NUM_WORKERS", "rollout.num_agent_workers", _AGENT),
    Variable("TRAIN_RATIO", "data.train_ratio", _AGENT),
    Variable("REWARD_FN_PATH", "reward.path", _AGENT),
    Variable("INSTRUCTION_VARIANT", "eval.instruction_variant", ASKS),
    Variable("REWARD_FUNCTION", "reward.function", ASKS),
    Variable("CHECKPOINT_PATH", "convert.checkpoint", _CONVERT),
)


def apply_environment(
    tree: dict[str, Any], kind: Kind, cls: type[Section], env: Mapping[str, str], problems: list[Problem]
) -> tuple[list[Applied], list[str]]:
    """Override keys of the tree by the variables set in `env`; an empty variable counts as unset, as in the scripts.

    Returns what was applied, in the table's order, and a note for each variable that this kind does not read.
    """
    applied: list[Applied] = []
    unread: list[str] = []
    by_path: dict[str, Applied] = {}
    for variable in VARIABLES:
        text = env.get(variable.name, "")
        if not text:
            continue
        if kind not in variable.kinds:
            unread.append(f"{variable.name} is set but kind {kind} does not read it: ignored")
            continue
        field = field_at(cls, variable.path)
        assert field is not None, f"{variable.name} names {variable.path}, which kind {kind} lacks"
        source = f"environment variable {variable.name}"
        value = parse_value(text, field, variable.path, source, problems)
        if value is None:
            continue
        other = by_path.get(variable.path)
        if other is not None and other.value != value:
            rule = f"{other.name}={other.value} and {variable.name}={value} name the same setting and differ"
            problems.append(
                Problem(path=variable.path, value=text, rule=rule, fix=f"unset {other.name}", source=source)
            )
        item = by_path[variable.path] = Applied(variable.name, variable.path, value)
        applied.append(item)
        if not set_path(tree, variable.path, value):
            rule = f"{variable.path} cannot be set: a key above it holds a value"
            problems.append(Problem(path=variable.path, value=text, rule=rule, source=source))
    return applied, unread
