"""The rules between keys of a spec, which verl or the trainer would only notice in the middle of a run."""

from __future__ import annotations

from opd.config.algorithm import NEED_STUDENT
from opd.config.base import KINDS
from opd.config.defaults import DISTILS, TRAINS
from opd.config.errors import Problem
from opd.config.kinds import AnySpec, EvalSpec, RunSpec
from opd.config.rule import Rule, broken, with_named

SIZES = {
    "row_length": "data.max_prompt_length + data.max_response_length",
    "num_sharing": "actor.ulysses_sequence_parallel_size",
    "num_ranks": "trainer.nnodes * trainer.gpus_per_node",
    "num_groups": "max(1, num_ranks // num_sharing)",
    "mini_rows": "actor.ppo_mini_batch_size * rollout.num_samples",
}
"""Names that the rules use beside the keys: tokens of the longest row, ranks that share a sequence, all ranks, data-parallel
ranks, rows of a mini-batch."""

EXCHANGING = ("varlen", "sdpa")
"""Attention implementations around which ranks that share a sequence trade tokens for heads."""

_IN_HEAD = f'opd.importance.tokens.normalize == "micro" and opd.importance.tokens.score in {NEED_STUDENT}'
_UNPACKED = "num_sharing > 1 and not actor.use_remove_padding"
_UNEVEN = "data.train_batch_size % actor.ppo_mini_batch_size"

RULES = (
    Rule(
        key="rollout.name",
        when='device == "cpu" and rollout.name is not None and rollout.name != "cpu"',
        rule="device cpu samples with the rollout server `cpu`; vLLM has no build that syncs weights on a CPU",
        fix="remove rollout.name, or set device: cuda",
    ),
    Rule(
        key="rollout.name",
        when='device == "cuda" and rollout.name == "cpu"',
        rule="the rollout server `cpu` belongs to device cpu",
        fix="set device: cpu, or rollout.name: vllm",
    ),
    Rule(
        key="model.attn_implementation",
        when='device == "cpu" and model.attn_implementation in ("flash_attention_2", "varlen")',
        rule="flash attention needs a CUDA device",
        fix="use sdpa",
    ),
    Rule(
        key="model.attn_implementation",
        when='device == "cuda" and model.attn_implementation == "varlen" and not actor.use_remove_padding',
        rule="varlen takes packed rows, and actor.use_remove_padding is false",
        fix="use sdpa, or actor.use_remove_padding: true",
    ),
    *(
        Rule(
            key=key,
            when=f"{key} is not None and {key} * num_sharing < row_length",
            rule="a token budget (times ulysses_sequence_parallel_size {num_sharing}) must hold the longest row: "
            "max_prompt_length + max_response_length = {row_length}; verl asserts on it in mid-run",
            fix="use at least {ceil_div(row_length, num_sharing)}, or remove the key",
        )
        for key in ("actor.ppo_max_token_len_per_gpu", "actor.log_prob_max_token_len_per_gpu")
    ),
    Rule(
        key="data.truncation",
        when='not data.filter_overlong and data.truncation == "left"',
        rule="left truncation would cut the system prompt and the instruction first, so it is refused: an overlong prompt is "
        "dropped and counted, or is an error",
        fix="set data.filter_overlong: true, or data.truncation: error",
    ),
    Rule(
        key="actor.ppo_mini_batch_size",
        when=_UNEVEN,
        rule="the mini-batch must divide data.train_batch_size ({data.train_batch_size})",
        fix="use a divisor of {data.train_batch_size}, or a train_batch_size that is a multiple of "
        "{actor.ppo_mini_batch_size}",
    ),
    *(
        Rule(
            key=key,
            when=f"not ({_UNEVEN}) and not actor.use_dynamic_bsz and not {prompts} * rollout.num_samples % num_groups "
            f"and {prompts} * rollout.num_samples // num_groups % {key}",
            rule=f"with use_dynamic_bsz off the micro-batch must divide a rank's rows ({{{prompts}}} prompts x "
            f"{{rollout.num_samples}} samples / {{num_groups}} data-parallel ranks = "
            f"{{{prompts} * rollout.num_samples // num_groups}})",
            fix=f"use a divisor of {{{prompts} * rollout.num_samples // num_groups}}, or use_dynamic_bsz: true",
            kinds=TRAINS,
        )
        for key, prompts in (
            ("actor.ppo_micro_batch_size_per_gpu", "actor.ppo_mini_batch_size"),
            ("actor.log_prob_micro_batch_size_per_gpu", "data.train_batch_size"),
        )
    ),
    *(
        Rule(
            key=key,
            when=f"num_ranks % {key}",
            rule="it must divide the number of ranks (nnodes x gpus_per_node = {num_ranks})",
            fix="use a divisor",
            kinds=DISTILS if key.startswith("opd.") else KINDS,
        )
        for key in (
            "rollout.tensor_parallel_size",
            "actor.ulysses_sequence_parallel_size",
            "opd.vocab_parallel_size",
        )
    ),
    Rule(
        key="actor.ppo_mini_batch_size",
        when="mini_rows % num_groups",
        rule="a mini-batch's rows (x rollout.num_samples = {mini_rows}) must divide evenly over the {num_groups} "
        "data-parallel ranks",
        fix="use a multiple of {num_groups}",
        kinds=TRAINS,
    ),
    Rule(
        key="actor.use_remove_padding",
        when=_UNPACKED,
        rule="ranks that share a sequence (actor.ulysses_sequence_parallel_size) take slices of packed rows",
        fix="set it to true, or actor.ulysses_sequence_parallel_size: 1",
    ),
    Rule(
        key="model.attn_implementation",
        when=f"num_sharing > 1 and not ({_UNPACKED}) and model.attn_implementation is not None "
        f"and model.attn_implementation not in {EXCHANGING}",
        rule="ranks that share a sequence (actor.ulysses_sequence_parallel_size) must exchange heads for tokens around "
        f"attention, which only {' and '.join(EXCHANGING)} can",
        fix=f"use {' or '.join(EXCHANGING)}, or actor.ulysses_sequence_parallel_size: 1",
    ),
    *(
        Rule(
            key=key,
            when=f'{key} == "auto"',
            rule="only distillation (kind opd, opd-agent) makes the memory plan that `auto` asks",
            fix="use true or false",
            kinds=("grpo", "eval"),
        )
        for key in ("actor.param_offload", "actor.optimizer_offload")
    ),
    Rule(
        key="reward.path",
        when='reward.function == "custom" and reward.path is None',
        rule="a custom reward function needs its file",
        fix="set reward.path: FILE.py",
    ),
    Rule(
        key="reward.function",
        when='reward.function is not None and reward.function != "custom" and reward.path is not None',
        rule="reward.path belongs to function custom",
        fix="set reward.function: custom, or remove reward.path",
    ),
    Rule(
        key="opd.max_length",
        when="opd.max_length is not None and opd.max_length < row_length",
        rule="it must hold max_prompt_length + max_response_length = {row_length}: a smaller value would cut rows silently",
        fix="use {row_length}, or remove the key",
        kinds=DISTILS,
    ),
    Rule(
        key="opd.beta",
        when='opd.loss_type == "jsd" and opd.beta is not None and not 0 < opd.beta < 1',
        rule="jsd needs 0 < beta < 1",
        fix="use 0.5, or remove the key",
        kinds=DISTILS,
    ),
    Rule(
        key="opd.beta",
        when='opd.loss_type != "jsd" and opd.beta is not None',
        rule="beta weighs the mixture of jsd; loss_type {opd.loss_type} has none",
        fix="remove opd.beta, or set opd.loss_type: jsd",
        kinds=DISTILS,
    ),
    Rule(
        key="opd.importance.tokens.scope",
        when=f'{_IN_HEAD} and opd.importance.tokens.scope == "batch"',
        rule="with normalize micro the number of tokens that an update trains would depend on how it is cut",
        fix="use scope: rollout, or normalize: global",
        kinds=DISTILS,
    ),
    Rule(
        key="opd.importance.tokens.normalize",
        when=f"{_IN_HEAD} and num_sharing > 1",
        rule="a rank that shares sequences (actor.ulysses_sequence_parallel_size) does not see the whole micro-batch",
        fix="use normalize: global, or actor.ulysses_sequence_parallel_size: 1",
        kinds=DISTILS,
    ),
    Rule(
        key="opd.reward_beta",
        when="opd.reward_beta is not None and rollout.num_samples == 1",
        rule="reward weighting compares the samples of one prompt, and rollout.num_samples is 1",
        fix="set rollout.num_samples to 2 or more, or remove opd.reward_beta",
        kinds=DISTILS,
    ),
)
"""For every kind that starts verl, in the order of the file. A key that has a default which keeps the rule is compared only where it is given: the charts'
values have no such default."""


def check(spec: AnySpec) -> list[Problem]:
    """Every broken rule of the spec, in the order of the file."""
    if not isinstance(spec, RunSpec):
        return []
    return list(broken(RULES, with_named(spec.model_dump(mode="json"), SIZES)))


def notes(spec: AnySpec) -> list[str]:
    """What is allowed but probably not meant, one sentence each."""
    out = []
    unused = [key for key in ("endpoint", "region", "addressing") if getattr(spec.store, key) is not None]
    if unused and not spec.store.url.startswith(("s3://", "s3a://")):
        out.append(f"store.{', store.'.join(unused)}: for S3 only, and store.url is {spec.store.url}: not used")
    function = getattr(getattr(spec, "reward", None), "function", "")
    variant = spec.eval.instruction_variant if isinstance(spec, EvalSpec) else "boxed"
    if function == "math_dapo" and variant == "boxed":
        out.append(
            "reward.function math_dapo looks for `Answer:` while the prepared prompts ask for \\boxed{}: unless your files "
            "differ every answer scores as wrong; use math_reward or math_verify"
        )
    if function == "math_reward" and variant == "dapo":
        out.append(
            "reward.function math_reward looks for \\boxed{} while variant dapo asks for `Answer:`; use math_dapo"
        )
    return out
