"""Checks the rules between keys of a spec, which verl or the trainer would only notice in the middle of a run."""

from __future__ import annotations

from collections.abc import Iterator

from opd.config.errors import Problem
from opd.config.kinds import AnySpec, ConvertSpec, EvalSpec, OpdAgentSpec, OpdSpec, RunSpec

EXCHANGING = ("varlen", "sdpa")
"""Attention implementations around which ranks that share a sequence trade tokens for heads."""


def check(spec: AnySpec) -> list[Problem]:
    """Every broken rule of the spec, in the order of the file."""
    if isinstance(spec, ConvertSpec):
        return []
    problems = [
        *_device(spec),
        *_lengths(spec),
        *_data(spec),
        *_batches(spec),
        *_ranks(spec),
        *_sequence_sharing(spec),
        *_offload(spec),
        *_reward(spec),
    ]
    if isinstance(spec, OpdSpec | OpdAgentSpec):
        problems += _distillation(spec)
    return problems


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


def _device(spec: RunSpec) -> Iterator[Problem]:
    if spec.device == "cpu" and spec.rollout.name != "cpu":
        yield Problem(
            path="rollout.name",
            value=spec.rollout.name,
            rule="device cpu samples with the rollout server `cpu`; vLLM has no build that syncs weights on a CPU",
            fix="remove rollout.name, or set device: cuda",
        )
    if spec.device == "cuda" and spec.rollout.name == "cpu":
        yield Problem(
            path="rollout.name",
            value="cpu",
            rule="the rollout server `cpu` belongs to device cpu",
            fix="set device: cpu, or rollout.name: vllm",
        )
    attention = spec.model.attn_implementation
    if spec.device == "cpu" and attention in ("flash_attention_2", "varlen"):
        yield Problem(
            path="model.attn_implementation",
            value=attention,
            rule="flash attention needs a CUDA device",
            fix="use sdpa",
        )
    elif attention == "varlen" and not spec.actor.use_remove_padding:
        yield Problem(
            path="model.attn_implementation",
            value=attention,
            rule="varlen takes packed rows, and actor.use_remove_padding is false",
            fix="use sdpa, or actor.use_remove_padding: true",
        )


def _lengths(spec: RunSpec) -> Iterator[Problem]:
    longest = spec.data.max_prompt_length + spec.data.max_response_length
    budgets = {
        "actor.ppo_max_token_len_per_gpu": spec.actor.ppo_max_token_len_per_gpu,
        "actor.log_prob_max_token_len_per_gpu": spec.actor.log_prob_max_token_len_per_gpu,
    }
    num_sharing = spec.actor.ulysses_sequence_parallel_size
    for path, budget in budgets.items():
        if budget * num_sharing < longest:
            yield Problem(
                path=path,
                value=budget,
                rule=f"a token budget (times ulysses_sequence_parallel_size {num_sharing}) must hold the longest row: "
                f"max_prompt_length + max_response_length = {longest}; verl asserts on it in mid-run",
                fix=f"use at least {-(-longest // num_sharing)}, or remove the key",
            )


def _data(spec: RunSpec) -> Iterator[Problem]:
    if not spec.data.filter_overlong and spec.data.truncation == "left":
        yield Problem(
            path="data.truncation",
            value="left",
            rule="left truncation would cut the system prompt and the instruction first, so it is refused: an overlong "
            "prompt is dropped and counted, or is an error",
            fix="set data.filter_overlong: true, or data.truncation: error",
        )


def _batches(spec: RunSpec) -> Iterator[Problem]:
    batch, mini = spec.data.train_batch_size, spec.actor.ppo_mini_batch_size
    if batch % mini:
        fits = max(d for d in range(1, min(batch, mini) + 1) if batch % d == 0)
        yield Problem(
            path="actor.ppo_mini_batch_size",
            value=mini,
            rule=f"the mini-batch must divide data.train_batch_size ({batch})",
            fix=f"use {fits}, or a train_batch_size that is a multiple of {mini}",
        )
        return
    if isinstance(spec, EvalSpec) or spec.actor.use_dynamic_bsz:
        return
    num_groups = _num_data_parallel(spec)
    rows = {
        "actor.ppo_micro_batch_size_per_gpu": (mini, spec.actor.ppo_micro_batch_size_per_gpu),
        "actor.log_prob_micro_batch_size_per_gpu": (batch, spec.actor.log_prob_micro_batch_size_per_gpu),
    }
    for path, (num_prompts, micro) in rows.items():
        per_rank, rest = divmod(num_prompts * spec.rollout.num_samples, num_groups)
        if not rest and per_rank % micro:
            yield Problem(
                path=path,
                value=micro,
                rule=f"with use_dynamic_bsz off the micro-batch must divide a rank's rows ({num_prompts} prompts x "
                f"{spec.rollout.num_samples} samples / {num_groups} data-parallel ranks = {per_rank})",
                fix=f"use a divisor of {per_rank}, or use_dynamic_bsz: true",
            )


def _num_data_parallel(spec: RunSpec) -> int:
    num_ranks = spec.trainer.nnodes * spec.trainer.gpus_per_node
    return max(1, num_ranks // spec.actor.ulysses_sequence_parallel_size)


def _ranks(spec: RunSpec) -> Iterator[Problem]:
    num_ranks = spec.trainer.nnodes * spec.trainer.gpus_per_node
    shares = {
        "rollout.tensor_parallel_size": spec.rollout.tensor_parallel_size,
        "actor.ulysses_sequence_parallel_size": spec.actor.ulysses_sequence_parallel_size,
    }
    if isinstance(spec, OpdSpec | OpdAgentSpec):
        shares["opd.vocab_parallel_size"] = spec.opd.vocab_parallel_size
    for path, size in shares.items():
        if num_ranks % size:
            yield Problem(
                path=path,
                value=size,
                rule=f"it must divide the number of ranks (nnodes x gpus_per_node = {num_ranks})",
                fix="use a divisor",
            )
    if isinstance(spec, EvalSpec):
        return
    rows = spec.actor.ppo_mini_batch_size * spec.rollout.num_samples
    if rows % _num_data_parallel(spec):
        yield Problem(
            path="actor.ppo_mini_batch_size",
            value=spec.actor.ppo_mini_batch_size,
            rule=f"a mini-batch's rows (x rollout.num_samples = {rows}) must divide evenly over the "
            f"{_num_data_parallel(spec)} data-parallel ranks",
            fix=f"use a multiple of {_num_data_parallel(spec)}",
        )


def _sequence_sharing(spec: RunSpec) -> Iterator[Problem]:
    if spec.actor.ulysses_sequence_parallel_size == 1:
        return
    if not spec.actor.use_remove_padding:
        yield Problem(
            path="actor.use_remove_padding",
            value=False,
            rule="ranks that share a sequence (actor.ulysses_sequence_parallel_size) take slices of packed rows",
            fix="set it to true, or actor.ulysses_sequence_parallel_size: 1",
        )
        return
    if spec.model.attn_implementation not in EXCHANGING:
        yield Problem(
            path="model.attn_implementation",
            value=spec.model.attn_implementation,
            rule="ranks that share a sequence (actor.ulysses_sequence_parallel_size) must exchange heads for tokens around "
            f"attention, which only {' and '.join(EXCHANGING)} can",
            fix=f"use {' or '.join(EXCHANGING)}, or actor.ulysses_sequence_parallel_size: 1",
        )


def _offload(spec: RunSpec) -> Iterator[Problem]:
    if isinstance(spec, OpdSpec | OpdAgentSpec):
        return
    for name in ("param_offload", "optimizer_offload"):
        if getattr(spec.actor, name) == "auto":
            yield Problem(
                path=f"actor.{name}",
                value="auto",
                rule="only distillation (kind opd, opd-agent) makes the residency plan that `auto` asks",
                fix="use true or false",
            )


def _reward(spec: RunSpec) -> Iterator[Problem]:
    reward = spec.reward
    if reward.function == "custom" and reward.path is None:
        yield Problem(
            path="reward.path", rule="a custom reward function needs its file", fix="set reward.path: FILE.py"
        )
    if reward.function != "custom" and reward.path is not None:
        yield Problem(
            path="reward.function",
            value=reward.function,
            rule="reward.path belongs to function custom",
            fix="set reward.function: custom, or remove reward.path",
        )


def _distillation(spec: OpdSpec | OpdAgentSpec) -> Iterator[Problem]:
    opd, longest = spec.opd, spec.data.max_prompt_length + spec.data.max_response_length
    if opd.max_length < longest:
        yield Problem(
            path="opd.max_length",
            value=opd.max_length,
            rule=f"it must hold max_prompt_length + max_response_length = {longest}: a smaller value would cut rows "
            "silently",
            fix=f"use {longest}, or remove the key",
        )
    if opd.loss_type == "jsd" and not (opd.beta is not None and 0 < opd.beta < 1):
        yield Problem(path="opd.beta", value=opd.beta, rule="jsd needs 0 < beta < 1", fix="use 0.5, or remove the key")
    if opd.loss_type != "jsd" and opd.beta is not None:
        yield Problem(
            path="opd.beta",
            value=opd.beta,
            rule=f"beta weighs the mixture of jsd; loss_type {opd.loss_type} has none",
            fix="remove opd.beta, or set opd.loss_type: jsd",
        )
    tokens = opd.importance.tokens
    if tokens.in_head:
        if tokens.scope == "batch":
            yield Problem(
                path="opd.importance.tokens.scope",
                value="batch",
                rule="with normalize micro the number of tokens that an update trains would depend on how it is cut",
                fix="use scope: rollout, or normalize: global",
            )
        if spec.actor.ulysses_sequence_parallel_size > 1:
            yield Problem(
                path="opd.importance.tokens.normalize",
                value="micro",
                rule="a rank that shares sequences (actor.ulysses_sequence_parallel_size) does not see the whole micro-batch",
                fix="use normalize: global, or actor.ulysses_sequence_parallel_size: 1",
            )
    if opd.reward_beta is not None and spec.rollout.num_samples == 1:
        yield Problem(
            path="opd.reward_beta",
            value=opd.reward_beta,
            rule="reward weighting compares the samples of one prompt, and rollout.num_samples is 1",
            fix="set rollout.num_samples to 2 or more, or remove opd.reward_beta",
        )
