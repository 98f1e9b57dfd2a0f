"""The rules between keys of a spec, which verl or the trainer would only notice in the middle of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from opd.config.algorithm import NEED_STUDENT
from opd.config.base import KINDS
from opd.config.defaults import ASKS, DEFAULTS, DISTILS, SAMPLES, TRAINS, Lookup
from opd.config.errors import Problem
from opd.config.kinds import BaseSpec, DistillationSpec, EvalSpec, RunSpec
from opd.config.rule import Rule, broken, with_named

SIZES = {
    "row_length": "data.max_prompt_length + data.max_response_length",
    "num_sharing": "actor.ulysses_sequence_parallel_size",
    "num_ranks": "trainer.nnodes * trainer.gpus_per_node",
    "num_groups": "max(1, num_ranks // num_sharing)",
    "num_samples": "1 if rollout.num_samples is None else rollout.num_samples",
    "mini_rows": "actor.ppo_mini_batch_size * num_samples",
    "step_rows": "data.train_batch_size * num_samples",
    "in_flight": "2 * step_rows if rollout.in_flight is None else rollout.in_flight",
    "max_age": "16 if rollout.max_age is None else rollout.max_age",
}
"""Names that the rules use beside the keys: tokens of the longest row, ranks that share a sequence, all ranks, data-parallel
ranks, answers of a prompt, rows of a mini-batch, of a step, and under the schedule carry on their way at once; the bound of their age there."""

MOST_APART = 1_000_000
"""Times that one weight of a blend may be another."""

EXCHANGING = ("varlen", "sdpa")
"""Attention implementations around which ranks that share a sequence trade tokens for heads."""

PACKED_ATTENTION = ("varlen", "flash_attention_2")
"""Those that need no matrix of all tokens by all for packed rows."""

_OTHERS = ("grpo", "sft", *ASKS)
_IS_PACKED = f'device == "cuda" and actor.use_remove_padding and model.attn_implementation in {PACKED_ATTENTION}'
_READS_BY_ACTOR = f"opd.read_tokens is None and not ({_IS_PACKED})"
_UPDATE_BY_ACTOR = f"opd.train_tokens is None and not ({_IS_PACKED})"
_UPDATE_SIZES = ("actor.ppo_micro_batch_size_per_gpu", "actor.ppo_max_token_len_per_gpu")
_LOG_PROB_READ = ((_OTHERS, ""), (DISTILS, f"{_READS_BY_ACTOR} and "))
"""(kinds, condition) by which actor.log_prob_* say how long a forward without a gradient is; else a distillation's memory plan or
opd.read_tokens does."""
_UPDATE_READ = ((_OTHERS, ""), (DISTILS, f"{_UPDATE_BY_ACTOR} and "))
"""The same of actor.ppo_*, a micro-batch of an update and opd.train_tokens."""

_IN_HEAD = f'opd.importance.tokens.normalize == "micro" and opd.importance.tokens.score in {NEED_STUDENT}'
_BEFORE_FALL = 'opd.importance.tokens.mode == "before_fall"'
_RECOMPUTED = "(opd.importance.problems.recompute.every is not None or opd.importance.problems.recompute.at_stages)"
_UNPACKED = "num_sharing > 1 and not actor.use_remove_padding"
_UNEVEN = "data.train_batch_size % actor.ppo_mini_batch_size"

_STAGE_POLICY = "(opd.policy.weight if item.policy_weight is None else item.policy_weight)"
_STAGE_DIVERGENCE = "(opd.divergence_weight if item.divergence_weight is None else item.divergence_weight)"
_STAGE_LOSS = "(opd.loss_type if item.loss_type is None else item.loss_type)"
_COMPARED = '("sampled_reverse_kl", "topk_reverse_kl")'
"""Losses to compare the reverse KL with."""

_TEACHER_KEYS = ("path", "revision", "prompt", "max_prompt_length", "refresh_every")


def _of_each_teacher(key: str, *, when: str, rule: str, fix: str) -> Iterator[Rule]:
    """A rule about one key of `teacher`, and of each of several `teachers`.

    Args:
        when: with the keys of the teacher in braces.
    """
    one = {name: f"teacher.{name}" for name in _TEACHER_KEYS}
    of = {name: f'teachers[item]["{name}"]' for name in _TEACHER_KEYS}
    alone = f"teacher is not None and {when.format(**one)}"
    yield Rule(key=one[key], when=alone, rule=rule, fix=fix, kinds=DISTILS)
    yield Rule(
        each="keys(teachers)",
        key=f"teachers.{{item}}.{key}",
        value=of[key],
        when=when.format(**of),
        rule=rule,
        fix=fix,
        kinds=DISTILS,
    )


def _of_run_and_stages(key: str, stage_key: str, holds: str, when: str, *, rule: str, fix: str) -> Iterator[Rule]:
    """A rule about a value of `opd` and the same of each stage that has one of its own.

    Args:
        key, stage_key: the value's under `opd` and within a stage.
        holds: the condition on the value for which the rule is meant, put behind it.
    """
    yield Rule(key=key, when=f"{key} {holds} and {when}", rule=rule, fix=fix, kinds=DISTILS)
    own = f"item.{stage_key}"
    yield Rule(
        each="opd.stages",
        key=f"opd.stages.{{index}}.{stage_key}",
        value=own,
        when=f"{own} is not None and {own} {holds} and {when}",
        rule=rule,
        fix=fix,
        kinds=DISTILS,
    )


def _where_rewarded(when: str, *, rule: str, fix: str) -> Iterator[Rule]:
    """A rule about a run or a stage that has a policy gradient."""
    return _of_run_and_stages("opd.policy.weight", "policy_weight", "> 0", when, rule=rule, fix=fix)


_CARRIES = 'rollout.schedule == "carry"'


def _where_carried() -> Iterator[Rule]:
    """What the schedule carry is not for, and what it needs."""
    strict = "use rollout.schedule: strict"
    for kinds, rule in (
        (("grpo",), "a policy gradient compares a prompt's answers with one another, and corrects by one model's probabilities of them"),
        (("opd-agent",), "a conversation with tools would have to keep the state of its tools over an update"),
        (ASKS, "nothing is trained here, so nothing is carried over an update"),
    ):  # fmt: skip
        yield Rule(key="rollout.schedule", when=_CARRIES, rule=rule, fix=strict, kinds=kinds)
    yield Rule(
        key="opd.reward_beta",
        when=f"{_CARRIES} and opd.reward_beta is not None",
        rule="reward weighting compares the answers of one prompt, which rollout.schedule carry trains on in different updates",
        fix=f"{strict}, or remove opd.reward_beta",
        kinds=("opd",),
    )
    yield from (
        replace(rule, kinds=("opd",))
        for rule in (
            *_where_rewarded(
                _CARRIES,
                rule="a policy gradient compares the answers of one prompt, which rollout.schedule carry trains on in different updates",
                fix=f"{strict}, or a weight of 0",
            ),
            *_where_loss_is(
                '("sampled_reverse_kl",)',
                _CARRIES,
                rule="it estimates the reverse KL from tokens of the student as it is, and rollout.schedule carry trains on earlier weights' tokens",
                fix=f"{strict}, or reverse_kl, which is exact whoever wrote the tokens",
            ),
            Rule(
                each="opd.stages",
                key="opd.stages.{index}.rollouts",
                value="item.rollouts",
                when=f'{_CARRIES} and item.rollouts == "teacher"',
                rule="answers that are read from a file are complete: there is nothing to carry over an update",
                fix=f"{strict}, or rollouts: student",
            ),
        )
    )
    yield Rule(
        key="opd.horizon.applies",
        when=f'{_CARRIES} and opd.horizon.applies == "generate"',
        rule="under rollout.schedule carry an answer is begun in one step and ends in another, whose horizon may be a different one",
        fix=f"{strict}, or applies: train",
        kinds=("opd",),
    )
    yield Rule(
        key="rollout.in_flight",
        when=f"{_CARRIES} and in_flight < step_rows",
        rule="fewer answers at once than an update trains on ({step_rows}) would leave nothing to carry",
        fix="use at least {step_rows}; twice as many is the default",
        kinds=("opd",),
    )
    yield Rule(
        key="rollout.max_age",
        when=f"{_CARRIES} and in_flight >= step_rows and in_flight + step_rows > max_age * step_rows",
        rule="with {in_flight} answers at once (rollout.in_flight) and {step_rows} an update, some would wait longer for theirs",
        fix="use at least {ceil_div(in_flight + step_rows, step_rows)}, or a smaller rollout.in_flight",
        kinds=("opd",),
    )
    for key in ("rollout.in_flight", "rollout.max_age"):
        yield Rule(
            key=key,
            when=f'{key} is not None and rollout.schedule != "carry"',
            rule="it belongs to rollout.schedule carry; strict generates a step's answers at once, by the newest weights",
            fix="remove the key, or set rollout.schedule: carry",
            kinds=SAMPLES,
        )


def _where_loss_is(kinds: str, when: str, *, rule: str, fix: str) -> Iterator[Rule]:
    """A rule about some of the losses of a run or a stage."""
    return _of_run_and_stages("opd.loss_type", "loss_type", f"in {kinds}", when, rule=rule, fix=fix)


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
            when=f"{only}{key} is not None and {key} * num_sharing < row_length",
            rule="a token budget (times ulysses_sequence_parallel_size {num_sharing}) must hold the longest row: "
            "max_prompt_length + max_response_length = {row_length}; verl asserts on it in mid-run",
            fix="use at least {ceil_div(row_length, num_sharing)}, or remove the key",
            kinds=kinds,
        )
        for key, read in (
            ("actor.ppo_max_token_len_per_gpu", _UPDATE_READ),
            ("actor.log_prob_max_token_len_per_gpu", _LOG_PROB_READ),
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
            when=f"data.split.part is None and data.split.{key} is not None and data.split.{key} != {former}",
            rule="it says what the parts are, and no data.split.part says which of them is used: all rows would be",
            fix=f"set data.split.part to 1, 2 and so on, or remove data.split.{key}",
        )
        for key, former in (("of", 2), ("seed", 42))  # charts and stored specs of before wrote these two out
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
            ("actor.ppo_micro_batch_size_per_gpu", "actor.ppo_mini_batch_size", _UPDATE_READ),
            ("actor.log_prob_micro_batch_size_per_gpu", "data.train_batch_size", _LOG_PROB_READ),
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
            ("opd.vocab_parallel_size", DISTILS),
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
            kinds=_OTHERS,
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
    Rule(
        key="reward.converter.url",
        when='reward.converter is not None and reward.function is not None and reward.function != "agent_plan"',
        rule="only agent_plan has reports to convert, and reward.function is {reward.function}",
        fix="remove reward.converter, or set reward.function: agent_plan",
        kinds=SAMPLES,
    ),
    Rule(
        key="teachers",
        value="keys(teachers)",
        when="teacher is not None and len(teachers) > 0",
        rule="all rows have the one teacher, or each has one of several",
        fix="remove teacher (TEACHER_MODEL_PATH sets it too), or give it a name under teachers too; or remove teachers and route",
        kinds=DISTILS,
    ),
    Rule(
        key="route.to",
        when="len(teachers) > 0 and len(route.to) == 0 and route.all is None",
        rule="there are several teachers, and nothing says which one reads a row",
        fix="give the name of a teacher or blend for each value in the data's column {route.by}: to: {{VALUE: NAME}}, or one for every "
        "row: all: NAME",
        kinds=DISTILS,
    ),
    Rule(
        key="route.all",
        when="route.all is not None and len(route.to) > 0",
        rule="one reads every row, or each row has its own by route.to",
        fix="remove route.all or route.to",
        kinds=DISTILS,
    ),
    Rule(
        key="route.all",
        when="route.all is not None and route.all not in keys(teachers) and route.all not in keys(route.blends)",
        rule="there is no teacher of that name under teachers, and no blend under route.blends",
        fix="name one that is there, or add it",
        kinds=DISTILS,
    ),
    Rule(
        each="keys(route.to)",
        key="route.to.{item}",
        value="route.to[item]",
        when="route.to[item] not in keys(teachers) and route.to[item] not in keys(route.blends)",
        rule="there is no teacher of that name under teachers, and no blend under route.blends",
        fix="name one that is there, or add it",
        kinds=DISTILS,
    ),
    Rule(
        each="keys(route.blends)",
        key="route.blends.{item}",
        value="item",
        when="item in keys(teachers)",
        rule="a teacher has that name, and route and metrics tell them apart by it",
        fix="give the blend another name",
        kinds=DISTILS,
    ),
    *(
        Rule(
            key=key,
            when=f"len(teachers) > 0 and {key} > 1",
            rule=f"ranks that share {shared} read one teacher's hidden states for all their tokens, and there are several teachers",
            fix="set it to 1, or use one teacher",
            kinds=DISTILS,
        )
        for key, shared in (
            ("actor.ulysses_sequence_parallel_size", "a sequence"),
            ("opd.vocab_parallel_size", "the heads"),
        )
    ),
    *_of_each_teacher(
        "refresh_every",
        when="{refresh_every} is not None and {refresh_every} > 0 and ({path} != model.path or {revision} != model.revision)",
        rule="a teacher that is refreshed gets the student's weights, so it is the student: model.path, and its revision where it has one",
        fix="give it the student's path and revision, or remove the key",
    ),
    *_of_each_teacher(
        "prompt",
        when='{prompt} is not None and not matches({prompt}, "(^|[^{{])([{{][{{])*[{{][^{{}}]")',
        rule="no name stands in braces in it, so the teacher would read the same text in the place of every row's question",
        fix="write {{prompt}}, which is the row's last user message, or {{COLUMN}} of data.train, or remove the key",
    ),
    *_of_each_teacher(
        "refresh_every",
        when="{refresh_every} is not None and {refresh_every} > 0 and model.lora is not None",
        rule="a LoRA student's weights are a frozen model and adapters, which a teacher does not have",
        fix="remove the key: the teacher stays the model that the student began as; or remove model.lora",
    ),
    *_of_each_teacher(
        "max_prompt_length",
        when="{max_prompt_length} is not None and {prompt} is None",
        rule="this teacher has no `prompt` of its own, and reads the student's prompts, whose length is data.max_prompt_length",
        fix="give it a prompt, or remove the key",
    ),
    *_of_each_teacher(
        "max_prompt_length",
        when=f"{_READS_BY_ACTOR} and "
        "{max_prompt_length} is not None and actor.log_prob_max_token_len_per_gpu is not None and actor.use_dynamic_bsz "
        "and actor.log_prob_max_token_len_per_gpu * num_sharing < {max_prompt_length} + data.max_response_length",
        rule="the token budget actor.log_prob_max_token_len_per_gpu (times ulysses_sequence_parallel_size {num_sharing}) must hold "
        "the teacher's longest row, its own prompt and max_response_length",
        fix="raise actor.log_prob_max_token_len_per_gpu, or give a smaller max_prompt_length",
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
    *_where_loss_is(
        '("topk_reverse_kl",)',
        "opd.top_k is None",
        rule="the teacher's tokens that it compares one by one need a number",
        fix="set opd.top_k: 64, or use reverse_kl, which compares all",
    ),
    Rule(
        key="opd.top_k",
        when='opd.top_k is not None and opd.loss_type != "topk_reverse_kl" and len(opd.stages) == 0',
        rule="it belongs to loss_type topk_reverse_kl; loss_type {opd.loss_type} compares all tokens",
        fix="remove the key, or set opd.loss_type: topk_reverse_kl",
        kinds=DISTILS,
    ),
    *_where_loss_is(
        _COMPARED,
        "opd.vocab_parallel_size > 1",
        rule="it looks at whole rows of logits, and ranks that share the heads (opd.vocab_parallel_size) have slices",
        fix="use reverse_kl, or opd.vocab_parallel_size: 1",
    ),
    *_where_rewarded(
        "num_samples == 1",
        rule="advantages compare the samples of one prompt, and rollout.num_samples is 1",
        fix="set rollout.num_samples to 2 or more, or the weight to 0",
    ),
    *_where_rewarded(
        "opd.vocab_parallel_size > 1",
        rule="a policy gradient looks at whole rows of logits, and ranks that share the heads (opd.vocab_parallel_size) have slices",
        fix="set opd.vocab_parallel_size to 1, or the weight to 0",
    ),
    *_where_rewarded(
        'opd.horizon.applies == "generate"',
        rule="answers that end at the horizon (opd.horizon.applies: generate) are not whole, so that their scores mean nothing",
        fix="use opd.horizon.applies: train, or set the weight to 0",
    ),
    Rule(
        key="opd.divergence_weight",
        when="len(opd.stages) == 0 and opd.divergence_weight == 0 and opd.policy.weight == 0",
        rule="both parts of the loss have weight 0, so that nothing is learnt",
        fix="set opd.divergence_weight: 1, or opd.policy.weight above 0",
        kinds=DISTILS,
    ),
    Rule(
        each="opd.stages",
        key="opd.stages.{index}.divergence_weight",
        value="item.divergence_weight",
        when=f"{_STAGE_DIVERGENCE} == 0 and {_STAGE_POLICY} == 0",
        rule="both parts of the stage's loss have weight 0",
        fix="give the stage a divergence_weight or a policy_weight above 0",
        kinds=DISTILS,
    ),
    Rule(
        each="opd.stages",
        key="opd.stages.{index}.rollouts",
        value="item.rollouts",
        when=f'item.rollouts == "teacher" and ({_STAGE_POLICY} > 0 or item.weight_schedule == "linear")',
        rule="a policy gradient is of answers that the student has sampled",
        fix="use rollouts: student, or policy_weight: 0 and weight_schedule: constant",
        kinds=DISTILS,
    ),
    Rule(
        each="opd.stages",
        key="opd.stages.{index}.rollouts",
        value="item.rollouts",
        when=f'item.rollouts == "teacher" and {_STAGE_LOSS} == "sampled_reverse_kl"',
        rule="the log ratio of a sampled token estimates the reverse KL where the student has sampled it",
        fix="use rollouts: student, or loss_type: reverse_kl",
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
        key="opd.importance.tokens.mode",
        when=f'{_BEFORE_FALL} and opd.importance.tokens.score in ("none", "random", "position")',
        rule="{opd.importance.tokens.score} has no value that could fall in the course of a response",
        fix="use score: divergence, as the papers' signal of a teacher, or mode: topk",
        kinds=DISTILS,
    ),
    Rule(
        key="opd.importance.tokens.scope",
        when=f'{_BEFORE_FALL} and opd.importance.tokens.scope == "batch"',
        rule="each response has a fall of its own (mode before_fall)",
        fix="use scope: rollout",
        kinds=DISTILS,
    ),
    Rule(
        key="opd.importance.tokens.normalize",
        when=f'{_BEFORE_FALL} and opd.importance.tokens.normalize == "micro"',
        rule="how many tokens lie ahead of a fall is known only when all are scored (mode before_fall), and the loss is "
        "divided by their number",
        fix="use normalize: global",
        kinds=DISTILS,
    ),
    Rule(
        key="opd.importance.problems.pass_rates",
        when='opd.importance.problems.weights != "none" and opd.importance.problems.pass_rates is None',
        rule="weights {opd.importance.problems.weights} follow from the prompts' pass rates",
        fix="name the file: `pass_rates.parquet` of a run of kind passrate",
        kinds=DISTILS,
    ),
    Rule(
        key="opd.importance.problems.pass_rates",
        when='opd.importance.problems.weights == "none" and opd.importance.problems.pass_rates is not None',
        rule="pass rates are read for weights only, and opd.importance.problems.weights is none",
        fix="set opd.importance.problems.weights: competence, or remove the key",
        kinds=DISTILS,
    ),
    *(
        Rule(
            key=f"opd.importance.problems.{key}",
            when=f'opd.importance.problems.weights != "competence" and opd.importance.problems.{key} != 1',
            rule="an exponent is given for weights: competence only; they are {opd.importance.problems.weights}",
            fix="set opd.importance.problems.weights: competence, or remove the key",
            kinds=DISTILS,
        )
        for key in ("alpha", "beta")
    ),
    Rule(
        key="opd.importance.problems.weights",
        when=f'{_RECOMPUTED} and opd.importance.problems.weights == "none"',
        rule="pass rates are measured again for weights only",
        fix="set opd.importance.problems.weights: competence, or remove opd.importance.problems.recompute",
        kinds=DISTILS,
    ),
    Rule(
        key="opd.importance.problems.drop",
        when=f"{_RECOMPUTED} and opd.importance.problems.drop",
        rule="prompts of weight 0 that have left the data could not come back when pass rates are measured again",
        fix="set drop: false, or remove opd.importance.problems.recompute",
        kinds=DISTILS,
    ),
    *(
        Rule(
            key="opd.importance.problems.recompute.num_samples",
            when=f"{_RECOMPUTED} and opd.importance.problems.weights {weights} and opd.importance.problems.recompute.num_samples < {least}",
            rule="no weight could follow from pass rates of so few answers",
            fix=f"set opd.importance.problems.recompute.num_samples: 8, or at least {least}",
            kinds=DISTILS,
        )
        for weights, least in (('!= "moment_matched"', 2), ('== "moment_matched"', 3))
    ),
    Rule(
        key="opd.importance.problems.recompute.at_stages",
        when="opd.importance.problems.recompute.at_stages and len(opd.stages) < 2",
        rule="the run has no second stage",
        fix="give opd.stages, or use opd.importance.problems.recompute.every",
        kinds=DISTILS,
    ),
    Rule(
        each="opd.stages",
        key="opd.stages.{index}.until",
        value="item.until",
        when="item.until is None and index + 1 < len(opd.stages)",
        rule="a stage that another follows has an end",
        fix="give its last step, or below 1 the share of the run's steps: until: 0.5",
        kinds=DISTILS,
    ),
    Rule(
        each="opd.stages",
        key="opd.stages.{index}.until",
        value="item.until",
        when="item.until is not None and index + 1 >= len(opd.stages)",
        rule="the last stage ends with the run",
        fix="remove the key, or add the stage that follows",
        kinds=DISTILS,
    ),
    Rule(
        each="opd.stages",
        key="opd.stages.{index}.beta",
        value="item.beta",
        when='(item.beta is not None) != (item.loss_type == "jsd")',
        rule="beta weighs the mixture of the stage's own loss_type jsd, and is given with it",
        fix="set beta: 0.5 with loss_type: jsd, and none with another",
        kinds=DISTILS,
    ),
    Rule(
        each="opd.stages",
        key="opd.stages.{index}.rollouts",
        value="item.rollouts",
        when='item.rollouts == "teacher" and opd.teacher_answers is None',
        rule="the teacher's answers are read from files, nothing samples them in the run",
        fix="set opd.teacher_answers to eval/generations.parquet of an evaluation of the teacher on data.train",
        kinds=("opd",),
    ),
    Rule(
        each="opd.stages",
        key="opd.stages.{index}.rollouts",
        value="item.rollouts",
        when='item.rollouts == "teacher"',
        rule="a file of answers holds no conversations with tools",
        fix="use rollouts: student, or kind: opd",
        kinds=("opd-agent",),
    ),
    Rule(
        key="opd.horizon.applies",
        when='opd.horizon.applies == "generate" and opd.horizon.part == "last"',
        rule="the last tokens of a response are known once it has been generated whole",
        fix="use part: first, or applies: train",
        kinds=DISTILS,
    ),
    Rule(
        key="opd.horizon.applies",
        when='opd.horizon.applies == "generate"',
        rule="a conversation with tools has a length for each of its turns, and is ended by data.max_response_length",
        fix="use applies: train",
        kinds=("opd-agent",),
    ),
    Rule(
        key="opd.horizon.grow_until",
        when="opd.horizon.grow_until is not None and opd.horizon.tokens is None",
        rule="a horizon grows from its tokens in the first step",
        fix="set opd.horizon.tokens, or remove the key",
        kinds=DISTILS,
    ),
    Rule(
        key="opd.reward_beta",
        when="opd.reward_beta is not None and rollout.num_samples == 1",
        rule="reward weighting compares the samples of one prompt, and rollout.num_samples is 1",
        fix="set rollout.num_samples to 2 or more, or remove opd.reward_beta",
        kinds=DISTILS,
    ),
    *_where_carried(),
)
"""For every kind that starts verl, in the order of the file. A key that has a default which keeps the rule is compared only where it is given: the charts'
values have no such default."""


def check(spec: BaseSpec) -> list[Problem]:
    """Every broken rule of the spec, in the order of the file."""
    if not isinstance(spec, RunSpec):
        return []
    problems = list(broken(RULES, with_named(spec.model_dump(mode="json"), SIZES)))
    return problems + list(_unlike_offloads(spec)) + list(_unread_blends(spec))


def _unread_blends(spec: RunSpec) -> Iterator[Problem]:
    """The teachers of a blend; the charts' language has no list within a list."""
    if not isinstance(spec, DistillationSpec):
        return
    for name, blend in sorted(spec.route.blends.items()):
        for teacher in sorted(blend.weights):
            if teacher not in spec.teachers:
                yield Problem(
                    path=f"route.blends.{name}.weights.{teacher}",
                    value=blend.weights[teacher],
                    rule="there is no teacher of that name under teachers",
                    fix=f"name one that is there ({', '.join(sorted(spec.teachers)) or 'there is none'}), or add it",
                )
            elif max(blend.weights.values()) > MOST_APART * blend.weights[teacher]:
                yield Problem(
                    path=f"route.blends.{name}.weights.{teacher}",
                    value=blend.weights[teacher],
                    rule=f"the largest weight of the blend is more than {MOST_APART:,} times as much, so this teacher would say nothing",
                    fix="take the teacher out of the blend, or give it more",
                )
            elif spec.teachers[teacher].prompt is not None:
                yield Problem(
                    path=f"route.blends.{name}.weights.{teacher}",
                    value=blend.weights[teacher],
                    rule="this teacher has a prompt of its own, and all teachers of a blend read the student's: a row carries one "
                    "prompt beside the student's, not one for each teacher",
                    fix=f"take it out of the blend, or remove teachers.{teacher}.prompt",
                )


def _unlike_offloads(spec: RunSpec) -> Iterator[Problem]:
    """The memory plan decides for all teachers together."""
    teachers = spec.named_teachers if isinstance(spec, DistillationSpec) else {}
    wishes = {key: teacher.offload for key, teacher in teachers.items()}
    for key, wish in wishes.items():
        if wish != (first := next(iter(wishes.values()))):
            yield Problem(
                path=f"{key}.offload",
                value=wish,
                rule=f"teachers wait in the same place, and that of {next(iter(wishes))} is {str(first).lower()}",
                fix="give all of them the same, or none",
            )


def carried_sizes(spec: RunSpec) -> tuple[int, int]:
    """Under the schedule carry: answers on their way at once, and the bound of their tokens' age in updates."""
    named = with_named(spec.model_dump(mode="json"), SIZES)
    return int(named["in_flight"]), int(named["max_age"])


def _holds(condition: str, spec: RunSpec) -> bool:
    """Whether a rule's condition is true of a checked spec."""
    return bool(with_named(spec.model_dump(mode="json"), {"holds": condition})["holds"])


def _unread_sizes(spec: DistillationSpec) -> list[str]:
    """Keys of a micro-batch's size that are not their defaults although the update does not read them."""
    if _holds(_UPDATE_BY_ACTOR, spec):
        return []
    look = Lookup(spec.kind, type(spec), spec.model_dump())
    sizes = [default for default in DEFAULTS if default.path in _UPDATE_SIZES]
    return [default.path for default in sizes if default.value(look) != look.typed(default.path)]


def notes(spec: BaseSpec) -> list[str]:
    """What is allowed but probably not meant, one sentence each."""
    out = []
    if isinstance(spec, DistillationSpec):
        reading = {number for reader in spec.routed for number in reader.teachers}
        idle = [name for number, name in enumerate(sorted(spec.teachers)) if number not in reading]
        out += [
            f"teachers.{name}: no value in route.to leads to it, so it is loaded and reads nothing" for name in idle
        ]
        out += [
            f"route.blends.{name}: nothing leads to it, so it is not used"
            for name in spec.route.blends
            if name not in spec.route.names
        ]
        if spec.device == "cuda" and (blends := [reader.name for reader in spec.routed if len(reader.teachers) > 1]):
            out.append(
                f"route.blends: the fused CUDA kernels have no blend of teachers: rows of {', '.join(blends)} run through plain fp32 "
                "products, which are slower; the memory plan counts them, its times do not"
            )
        if spec.device == "cuda" and spec.opd.without_kernels:
            lacking = ", ".join(spec.opd.without_kernels)
            out.append(
                f"opd: the fused CUDA kernels have no {lacking.removeprefix('the ')}: where it is used the heads run as plain fp32 products, "
                "which are slower; the memory plan counts them, its times do not"
            )
        out += [
            f"{key}: this distillation does not read it: opd.train_tokens says how its update is cut, or, on packed rows of a GPU where "
            "that is unset, the memory plan"
            for key in _unread_sizes(spec)
        ]
        tokens = spec.opd.importance.tokens
        if tokens.in_head and not tokens.settles and spec.opd.train_tokens is None and _holds(_IS_PACKED, spec):
            out.append(
                f"opd.importance.tokens.normalize micro: the scale of {tokens.score} is that of a micro-batch, which the memory plan makes as "
                "long as the GPU has room for, so another GPU may train on other tokens; set opd.train_tokens, or normalize: global"
            )
        losses = {spec.opd.loss_type, *(stage.loss_type for stage in spec.opd.stages)}
        off_policy = spec.actor.ppo_epochs > 1 or spec.actor.ppo_mini_batch_size < spec.data.train_batch_size
        if "sampled_reverse_kl" in losses and (spec.rollout.is_truncated or off_policy):
            out.append(
                "opd.loss_type sampled_reverse_kl: its mean is the reverse KL only of tokens drawn from the student's whole "
                "distribution, in a step of one update; set rollout.top_p: 1, rollout.top_k: -1 and one mini-batch a step"
            )
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
