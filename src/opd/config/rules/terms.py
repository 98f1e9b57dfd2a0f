"""What the rules name beside the keys: sizes that follow from several of them, and conditions that several rules share."""

from __future__ import annotations

from opd.config.defaults import ASKS, DISTILS
from opd.config.kinds import RunSpec
from opd.config.rule import with_named

SIZES = {
    "row_length": "data.max_prompt_length + data.max_response_length",
    "num_sharing": "actor.ulysses_sequence_parallel_size",
    "num_ranks": "trainer.nnodes * trainer.gpus_per_node",
    "num_groups": "max(1, num_ranks // num_sharing)",
    "num_samples": "1 if rollout.num_samples is None else rollout.num_samples",
    "mini_rows": "actor.ppo_mini_batch_size * num_samples",
    "step_rows": "data.train_batch_size * num_samples",
    "in_flight": "2 * step_rows if rollout.in_flight is None else rollout.in_flight",
    "max_age": "8 * ceil_div(in_flight, step_rows) if rollout.max_age is None else rollout.max_age",
}
"""Names that the rules use beside the keys: tokens of the longest row, ranks that share a sequence, all ranks, data-parallel
ranks, answers of a prompt, rows of a mini-batch, of a step, and under the schedule carry on their way at once; the bound of their age there."""

PACKED_ATTENTION = ("varlen", "flash_attention_2")
"""Those that need no matrix of all tokens by all for packed rows."""

OTHERS = ("grpo", "sft", *ASKS)
IS_PACKED = f'device == "cuda" and actor.use_remove_padding and model.attn_implementation in {PACKED_ATTENTION}'
READS_BY_ACTOR = f"opd.read_tokens is None and not ({IS_PACKED})"
UPDATE_BY_ACTOR = f"opd.train_tokens is None and not ({IS_PACKED})"
UPDATE_SIZES = ("actor.ppo_micro_batch_size_per_gpu", "actor.ppo_max_token_len_per_gpu")
LOG_PROB_READ = ((OTHERS, ""), (DISTILS, f"{READS_BY_ACTOR} and "))
"""(kinds, condition) by which actor.log_prob_* say how long a forward without a gradient is; else a distillation's memory plan or
opd.read_tokens does."""
UPDATE_READ = ((OTHERS, ""), (DISTILS, f"{UPDATE_BY_ACTOR} and "))
"""The same of actor.ppo_*, a micro-batch of an update and opd.train_tokens."""


def carried_sizes(spec: RunSpec) -> tuple[int, int]:
    """Under the schedule carry: answers on their way at once, and the bound of their tokens' age in updates."""
    named = with_named(spec.model_dump(mode="json"), SIZES)
    return int(named["in_flight"]), int(named["max_age"])


def holds(condition: str, spec: RunSpec) -> bool:
    """Whether a rule's condition is true of a checked spec."""
    return bool(with_named(spec.model_dump(mode="json"), {"holds": condition})["holds"])
