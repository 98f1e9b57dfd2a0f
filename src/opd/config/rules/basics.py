"""Device, data, rewards, and sizes that must divide or hold one another."""

from __future__ import annotations

from opd.config.base import KINDS
from opd.config.defaults import ASKS, SAMPLES, TRAINS
from opd.config.rule import Rule
from opd.config.rules.terms import LOG_PROB_READ, OTHERS, UPDATE_READ

_UNPACKED = "num_sharing > 1 and not actor.use_remove_padding"
_UNEVEN = "data.train_batch_size % actor.ppo_mini_batch_size"

EXCHANGING = ("varlen", "sdpa")
"""Attention implementations around which ranks that share a sequence trade tokens for heads."""

BASICS = (
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
    *(
        Rule(
            key=key,
            when=f'rollout.name == "vllm" and {key} is not None and ({key} > 2 or {key} > 0 and {key} < 0.01)',
            rule="vLLM samples at temperatures from 0.01 to 2, or greedily at 0; it takes a smaller one for 0.01, and refuses every request with a larger one",
            fix=f"use 0.01 to 2{or_greedy}",
            kinds=SAMPLES,
        )
        for key, or_greedy in (("rollout.temperature", ""), ("rollout.val.temperature", ", or 0"))
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
            when=f"{only}{key} is not None and {key} * num_sharing < row_length",
            rule="a token budget (times ulysses_sequence_parallel_size {num_sharing}) must hold the longest row: "
            "max_prompt_length + max_response_length = {row_length}; verl asserts on it in mid-run",
            fix="use at least {ceil_div(row_length, num_sharing)}, or remove the key",
            kinds=kinds,
        )
        for key, read in (
            ("actor.ppo_max_token_len_per_gpu", UPDATE_READ),
            ("actor.log_prob_max_token_len_per_gpu", LOG_PROB_READ),
        )
        for kinds, only in read
    ),
    Rule(
        key="model.lora",
        when="model.lora is not None",
        rule="this kind trains nothing: adapters are for kinds that do",
        fix="remove the key; to ask a trained LoRA student, convert its checkpoint and give that folder as model.path",
        kinds=ASKS,
    ),
    Rule(
        key="data.truncation",
        when='not data.filter_overlong and data.truncation == "left"',
        rule="left truncation would cut the system prompt and the instruction first, so it is refused: an overlong prompt is "
        "dropped and counted, or is an error",
        fix="set data.filter_overlong: true, or data.truncation: error",
    ),
    *(
        Rule(
            key=f"data.split.{key}",
            when=f"data.split.part is None and data.split.{key} is not None",
            rule="it says what the parts are, and no data.split.part says which of them is used: all rows would be",
            fix=f"set data.split.part to 1, 2 and so on, or remove data.split.{key}",
        )
        for key in ("of", "seed")
    ),
    Rule(
        key="data.split.part",
        when="data.split.part is not None and data.split.part > data.split.of",
        rule="there are {data.split.of} parts (data.split.of), counted from 1",
        fix="use at most {data.split.of}, or a larger data.split.of",
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
            when=f"{only}not ({_UNEVEN}) and not actor.use_dynamic_bsz and not {prompts} * num_samples % num_groups "
            f"and {prompts} * num_samples // num_groups % {key}",
            rule=f"with use_dynamic_bsz off the micro-batch must divide a rank's rows ({{{prompts}}} prompts x "
            f"{{num_samples}} samples / {{num_groups}} data-parallel ranks = "
            f"{{{prompts} * num_samples // num_groups}})",
            fix=f"use a divisor of {{{prompts} * num_samples // num_groups}}, or use_dynamic_bsz: true",
            kinds=tuple(kind for kind in kinds if kind in TRAINS),
        )
        for key, prompts, read in (
            ("actor.ppo_micro_batch_size_per_gpu", "actor.ppo_mini_batch_size", UPDATE_READ),
            ("actor.log_prob_micro_batch_size_per_gpu", "data.train_batch_size", LOG_PROB_READ),
        )
        for kinds, only in read
    ),
    *(
        Rule(
            key=key,
            when=f"num_ranks % {key}",
            rule="it must divide the number of ranks (nnodes x gpus_per_node = {num_ranks})",
            fix="use a divisor",
            kinds=kinds,
        )
        for key, kinds in (
            ("rollout.tensor_parallel_size", SAMPLES),
            ("actor.ulysses_sequence_parallel_size", KINDS),
        )
    ),
    Rule(
        key="actor.ppo_mini_batch_size",
        when="mini_rows % num_groups",
        rule="a mini-batch's rows (x {num_samples} samples = {mini_rows}) must divide evenly over the {num_groups} "
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
            kinds=OTHERS,
        )
        for key in ("actor.gradient_checkpointing", "actor.param_offload", "actor.optimizer_offload")
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
)
