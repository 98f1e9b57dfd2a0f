"""Table of the original's environment variables: the key that each one overrides, and the kinds that read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from opd.experiment.base import ASKS, DISTILS, FILE_KINDS, RUNS, SAMPLES, TRAINS, Kind


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


_TABLE: tuple[tuple[tuple[Kind, ...], str], ...] = (
    (FILE_KINDS, "RUN_ID name, OUTPUT_ROOT output.root"),
    (RUNS, "MODEL_PATH model.path, MODEL_NAME model.name, MASTER_PORT trainer.master_port"),
    (RUNS, "DATA_DIR data.dir, TRAIN_BATCH_SIZE data.train_batch_size, ENABLE_THINKING data.enable_thinking"),
    (RUNS, "MAX_PROMPT_LENGTH data.max_prompt_length, MAX_RESPONSE_LENGTH data.max_response_length"),
    (RUNS, "PPO_MINI_BATCH_SIZE actor.ppo_mini_batch_size, USE_DYNAMIC_BSZ actor.use_dynamic_bsz"),
    (RUNS, "PPO_MICRO_BATCH_SIZE_PER_GPU actor.ppo_micro_batch_size_per_gpu"),
    (RUNS, "LOG_PROB_MICRO_BATCH_SIZE_PER_GPU actor.log_prob_micro_batch_size_per_gpu"),
    (TRAINS, "LEARNING_RATE actor.learning_rate, TOTAL_EPOCHS trainer.total_epochs, SAVE_FREQ trainer.save_freq"),
    (TRAINS, "TEST_FREQ trainer.test_freq, VAL_BEFORE_TRAIN trainer.val_before_train"),
    (SAMPLES, "TP_SIZE rollout.tensor_parallel_size, ROLLOUT_NTP_SIZE rollout.tensor_parallel_size"),
    (SAMPLES, "GPU_MEMORY_UTIL rollout.gpu_memory_utilization, ROLLOUT_N rollout.num_samples"),
    (SAMPLES, "TEMPERATURE rollout.temperature, TOP_P rollout.top_p, TOP_K rollout.top_k"),
    (SAMPLES, "VAL_N rollout.val.num_samples, VAL_TEMPERATURE rollout.val.temperature"),
    (SAMPLES, "VAL_TOP_P rollout.val.top_p, VAL_TOP_K rollout.val.top_k"),
    (("grpo",), "KL_LOSS_COEF grpo.kl_loss_coef, KL_LOSS_TYPE grpo.kl_loss_type, ENTROPY_COEFF grpo.entropy_coeff"),
    (("grpo",), "CLIP_RATIO_LOW grpo.clip_ratio_low, CLIP_RATIO_HIGH grpo.clip_ratio_high"),
    (("grpo",), "CLIP_RATIO_C grpo.clip_ratio_c, LOSS_AGG_MODE grpo.loss_agg_mode, DAPO_TRAIN_RATIO data.train_ratio"),
    (DISTILS, "TEACHER_MODEL_PATH teacher.path, OPD_LOSS_TYPE opd.loss_type, OPD_CHUNK_SIZE opd.chunk_size"),
    (DISTILS, "OPD_MAX_LENGTH opd.max_length, OPD_REWARD_BETA opd.reward_beta"),
    (("opd-agent",), "DATABASE_DIR agent.database_dir, ENABLE_TOOLS agent.enable_tools, TOOL_FORMAT agent.tool_format"),
    (("opd-agent",), "MAX_ASSISTANT_TURNS agent.max_assistant_turns, TOOL_CONFIG_PATH agent.tool_config_path"),
    (("opd-agent",), "MAX_TOOL_RESPONSE_LENGTH agent.max_tool_response_length, TRAIN_RATIO data.train_ratio"),
    (("opd-agent",), "AGENT_NUM_WORKERS rollout.num_agent_workers, REWARD_FN_PATH reward.path"),
    (ASKS, "INSTRUCTION_VARIANT eval.instruction_variant, REWARD_FUNCTION reward.function"),
    (("convert",), "CHECKPOINT_PATH convert.checkpoint"),
)
VARIABLES = tuple(
    Variable(name, path, kinds) for kinds, pairs in _TABLE for name, path in map(str.split, pairs.split(", "))
)
