"""Rules between the sections of a spec, which verl or the trainer would only notice in the middle of a run.

A rule between the keys of one section is that section's `check`. Each function here yields the problems of one subject.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from opd.config.algorithm import Stage
from opd.config.base import Section
from opd.config.errors import Problem
from opd.config.kinds import BaseSpec, DistillationSpec, GrpoSpec, OpdAgentSpec, OpdSpec, RunSpec, SamplingSpec
from opd.config.refusals import redact
from opd.config.tree import sections, value_at
from opd.store.access import MEANT_AS_URL_PATTERN, URL_FIX, URL_PATTERN, URL_RULE

Problems = Iterator[Problem]
EXCHANGING = ("varlen", "sdpa")
"""Attention implementations in which ranks that share a sequence exchange heads for tokens."""


def check(spec: BaseSpec) -> list[Problem]:
    """Return every broken rule of the spec: within its sections first, then between them."""
    found = list(check_sections(spec))
    for rules, cls in _RULES:
        if isinstance(spec, cls):
            found += rules(spec)
    return [redacted(problem) for problem in found]


def check_sections(section: Section) -> Problems:
    """Yield what is wrong between the keys of each section."""
    for path, inner in sections(section):
        for problem in inner.check():
            yield problem.below(path)


def redacted(problem: Problem) -> Problem:
    """Return the problem without a secret in its value."""
    last = problem.path.rpartition(".")[2]
    return problem.with_value(redact({last: problem.value})[last])


def at(spec: Section, path: str, rule: str, fix: str) -> Problem:
    """Return a problem of the key at `path`, with its value."""
    return Problem(path=path, value=value_at(spec, path), rule=rule, fix=fix)


def _policy_loss(spec: GrpoSpec) -> Problems:
    """verl would divide by the width of a micro-batch's padding."""
    has_factor = any("loss_scale_factor" in text for text in spec.overrides)
    if spec.grpo.loss_agg_mode == "seq-mean-token-sum-norm" and not has_factor:
        rule = "the mode divides by a number of tokens that stays the same, and none is given"
        fix = "add the override actor_rollout_ref.actor.loss_scale_factor=N, or use seq-mean-token-sum"
        yield at(spec, "grpo.loss_agg_mode", rule, fix)
    if spec.grpo.kl_loss_type == "full" and spec.grpo.kl_loss_coef > 0 and spec.model.lora is not None:
        rule = "with model.lora the KL to the start model is an estimate from the sampled tokens"
        yield at(spec, "grpo.kl_loss_type", rule, "use low_var_kl, or remove model.lora")


def _store(spec: BaseSpec) -> Problems:
    if re.search(MEANT_AS_URL_PATTERN, spec.store.url) and not re.search(URL_PATTERN, spec.store.url):
        yield at(spec, "store.url", URL_RULE, URL_FIX)


def _device(spec: RunSpec) -> Problems:
    actor, attention = spec.actor, spec.model.attn_implementation
    key = "model.attn_implementation"
    if spec.device == "cpu" and attention in ("flash_attention_2", "varlen"):
        yield at(spec, key, "flash attention needs a CUDA device", "use sdpa")
    if spec.device == "cuda" and attention == "varlen" and not actor.use_remove_padding:
        rule = "varlen takes packed rows, and actor.use_remove_padding is false"
        yield at(spec, key, rule, "use sdpa, or actor.use_remove_padding: true")
    if spec.num_sharing > 1 and not actor.use_remove_padding:
        rule = "ranks that share a sequence (actor.ulysses_sequence_parallel_size) take slices of packed rows"
        fix = "set it to true, or actor.ulysses_sequence_parallel_size: 1"
        yield at(spec, "actor.use_remove_padding", rule, fix)
    elif spec.num_sharing > 1 and attention not in EXCHANGING:
        rule = (
            "ranks that share a sequence (actor.ulysses_sequence_parallel_size) must exchange heads for tokens around "
            f"attention, which only {' and '.join(EXCHANGING)} can"
        )
        yield at(spec, key, rule, f"use {' or '.join(EXCHANGING)}, or actor.ulysses_sequence_parallel_size: 1")


def _batches(spec: RunSpec) -> Problems:
    """Check that the mini-batch divides the batch and that every rank gets as many rows."""
    batch, mini = spec.data.train_batch_size, spec.actor.ppo_mini_batch_size
    ranks, groups, samples = spec.num_ranks, spec.num_groups, spec.num_samples
    if batch % mini:
        rule = f"the mini-batch must divide data.train_batch_size ({batch})"
        fix = f"use a divisor of {batch}, or a train_batch_size that is a multiple of {mini}"
        yield at(spec, "actor.ppo_mini_batch_size", rule, fix)
    for key in ("rollout.tensor_parallel_size", "actor.ulysses_sequence_parallel_size"):
        size = value_at(spec, key) or 1
        if ranks % size:
            rule = f"it must divide the number of ranks (nnodes x gpus_per_node = {ranks})"
            yield at(spec, key, rule, "use a divisor")
    if spec.trains and mini * samples % groups:
        rule = (
            f"a mini-batch's rows (x {samples} samples = {mini * samples}) must divide evenly over the {groups} "
            "data-parallel ranks"
        )
        yield at(spec, "actor.ppo_mini_batch_size", rule, f"use a multiple of {groups}")
    if spec.trains and not batch % mini and not spec.actor.use_dynamic_bsz:
        yield from _micro_batches(spec)


def _micro_batches(spec: RunSpec) -> Problems:
    for key, prompts, is_read in (
        ("actor.ppo_micro_batch_size_per_gpu", spec.actor.ppo_mini_batch_size, spec.update_by_actor),
        ("actor.log_prob_micro_batch_size_per_gpu", spec.data.train_batch_size, spec.reads_by_actor),
    ):
        rows, left_over = divmod(prompts * spec.num_samples, spec.num_groups)
        if is_read and not left_over and rows % value_at(spec, key):
            rule = (
                f"with use_dynamic_bsz off the micro-batch must divide a rank's rows ({prompts} prompts x "
                f"{spec.num_samples} samples / {spec.num_groups} data-parallel ranks = {rows})"
            )
            yield at(spec, key, rule, f"use a divisor of {rows}, or use_dynamic_bsz: true")


def _token_budgets(spec: RunSpec) -> Problems:
    row, sharing = spec.row_length, spec.num_sharing
    for key, is_read in (
        ("actor.ppo_max_token_len_per_gpu", spec.update_by_actor),
        ("actor.log_prob_max_token_len_per_gpu", spec.reads_by_actor),
    ):
        if is_read and value_at(spec, key) * sharing < row:
            rule = (
                f"a token budget (times ulysses_sequence_parallel_size {sharing}) must hold the longest row: "
                f"max_prompt_length + max_response_length = {row}; verl asserts on it in mid-run"
            )
            yield at(spec, key, rule, f"use at least {-(-row // sharing)}, or remove the key")


def _without_plan(spec: RunSpec) -> Problems:
    """Reject a memory plan and adapters where nothing is trained."""
    if spec.trains:
        return
    for key in ("actor.gradient_checkpointing", "actor.param_offload", "actor.optimizer_offload"):
        if value_at(spec, key) == "auto":
            rule = "only a kind that trains makes the memory plan that `auto` asks"
            yield at(spec, key, rule, "use true or false")
    if spec.model.lora is not None:
        rule = "this kind trains nothing: adapters are for kinds that do"
        fix = "remove the key; to ask a trained LoRA student, convert its checkpoint and give that folder as model.path"
        yield at(spec, "model.lora", rule, fix)


def _rollout(spec: SamplingSpec) -> Problems:
    rollout = spec.rollout
    if spec.device == "cpu" and rollout.name != "cpu":
        rule = "device cpu samples with the rollout server `cpu`; vLLM has no build that syncs weights on a CPU"
        yield at(spec, "rollout.name", rule, "remove rollout.name, or set device: cuda")
    if spec.device == "cuda" and rollout.name == "cpu":
        rule = "the rollout server `cpu` belongs to device cpu"
        yield at(spec, "rollout.name", rule, "set device: cpu, or rollout.name: vllm")
    if rollout.name == "vllm":
        for key, or_greedy in (("rollout.temperature", ""), ("rollout.val.temperature", ", or 0")):
            temperature = value_at(spec, key)
            if temperature > 2 or 0 < temperature < 0.01:
                rule = (
                    "vLLM samples at temperatures from 0.01 to 2, or greedily at 0; it takes a smaller one for 0.01, "
                    "and refuses every request with a larger one"
                )
                yield at(spec, key, rule, f"use 0.01 to 2{or_greedy}")


def _teachers(spec: DistillationSpec) -> Problems:
    """Check that each row has one teacher."""
    teachers, route = spec.teachers, spec.route
    if spec.teacher is not None and teachers:
        fix = (
            "remove teacher (TEACHER_MODEL_PATH sets it too), or give it a name under teachers too; "
            "or remove teachers and route"
        )
        rule = "all rows have the one teacher, or each has one of several"
        yield Problem(path="teachers", value=sorted(teachers), rule=rule, fix=fix)
    if teachers and not route.to and route.all is None:
        rule = "there are several teachers, and nothing says which one reads a row"
        fix = f"give the name of a teacher for each value in the data's column {route.by}: to: {{VALUE: NAME}}, or one for every row: all: NAME"
        yield at(spec, "route.to", rule, fix)
    for key, name in [("route.all", route.all), *((f"route.to.{value}", name) for value, name in route.to.items())]:
        if name is not None and name not in teachers:
            rule = "there is no teacher of that name under teachers"
            yield Problem(path=key, value=name, rule=rule, fix="name one that is there, or add it")
    if teachers and spec.num_sharing > 1:
        rule = "ranks that share a sequence read one teacher's hidden states for all their tokens, and there are several teachers"
        yield at(spec, "actor.ulysses_sequence_parallel_size", rule, "set it to 1, or use one teacher")
    offloads = {key: teacher.offload for key, teacher in spec.named_teachers.items()}
    for key, wish in offloads.items():
        first = next(iter(offloads))
        if wish != offloads[first]:
            rule = f"teachers wait in the same place, and that of {first} is {str(offloads[first]).lower()}"
            yield at(spec, f"{key}.offload", rule, "give all of them the same, or none")


def _each_teacher(spec: DistillationSpec) -> Problems:
    budget = spec.actor.log_prob_max_token_len_per_gpu * spec.num_sharing
    for key, teacher in spec.named_teachers.items():
        if teacher.refresh_every and (teacher.path, teacher.revision) != (spec.model.path, spec.model.revision):
            rule = "a teacher that is refreshed gets the student's weights, so it is the student: model.path, and its revision where it has one"
            fix = "give it the student's path and revision, or remove the key"
            yield at(spec, f"{key}.refresh_every", rule, fix)
        if teacher.refresh_every and spec.model.lora is not None:
            rule = "a LoRA student's weights are a frozen model and adapters, which a teacher does not have"
            fix = "remove the key: the teacher stays the model that the student began as; or remove model.lora"
            yield at(spec, f"{key}.refresh_every", rule, fix)
        longest = (teacher.max_prompt_length or 0) + spec.data.max_response_length
        if spec.reads_by_actor and spec.actor.use_dynamic_bsz and teacher.prompt is not None and budget < longest:
            rule = (
                f"the token budget actor.log_prob_max_token_len_per_gpu (times ulysses_sequence_parallel_size "
                f"{spec.num_sharing}) must hold the teacher's longest row, its own prompt and max_response_length"
            )
            fix = "raise actor.log_prob_max_token_len_per_gpu, or give a smaller max_prompt_length"
            yield at(spec, f"{key}.max_prompt_length", rule, fix)


def _lengths(spec: DistillationSpec) -> Problems:
    row = spec.row_length
    if spec.opd.max_length < row:
        rule = f"it must hold max_prompt_length + max_response_length = {row}: a smaller value would cut rows silently"
        yield at(spec, "opd.max_length", rule, f"use {row}, or remove the key")
    if isinstance(spec, OpdAgentSpec) and spec.opd.horizon.applies == "generate":
        rule = "a conversation with tools has a length for each of its turns, and is ended by data.max_response_length"
        yield at(spec, "opd.horizon.applies", rule, "use applies: train")


def _policy_weights(spec: DistillationSpec) -> Iterator[str]:
    """Yield the key of each policy weight above 0, of the run and of its stages."""
    if spec.opd.policy.weight > 0:
        yield "opd.policy.weight"
    for index, stage in enumerate(spec.opd.stages):
        if (stage.policy_weight or 0) > 0:
            yield f"opd.stages.{index}.policy_weight"


def _losses(spec: DistillationSpec, kind: str) -> Iterator[str]:
    """Yield the key of each loss of this kind, of the run and of its stages."""
    if spec.opd.loss_type == kind:
        yield "opd.loss_type"
    for index, stage in enumerate(spec.opd.stages):
        if stage.loss_type == kind:
            yield f"opd.stages.{index}.loss_type"


def _rewards(spec: DistillationSpec) -> Problems:
    alone = spec.rollout.num_samples == 1
    for key in _policy_weights(spec):
        if alone:
            rule = "advantages compare the samples of one prompt, and rollout.num_samples is 1"
            yield at(spec, key, rule, "set rollout.num_samples to 2 or more, or the weight to 0")
        if spec.opd.horizon.applies == "generate":
            rule = "answers that end at the horizon (opd.horizon.applies: generate) are not whole, so that their scores mean nothing"
            yield at(spec, key, rule, "use opd.horizon.applies: train, or set the weight to 0")
    if alone and spec.opd.reward_beta is not None:
        rule = "reward weighting compares the samples of one prompt, and rollout.num_samples is 1"
        fix = "set rollout.num_samples to 2 or more, or remove opd.reward_beta"
        yield at(spec, "opd.reward_beta", rule, fix)


def _losses_and_weights(spec: DistillationSpec) -> Problems:
    opd = spec.opd
    for key in _losses(spec, "topk_reverse_kl") if opd.top_k is None else ():
        rule = "the teacher's tokens that it compares one by one need a number"
        yield at(spec, key, rule, "set opd.top_k: 64, or use reverse_kl, which compares all")
    if opd.top_k is not None and opd.loss_type != "topk_reverse_kl" and not opd.stages:
        rule = f"it belongs to loss_type topk_reverse_kl; loss_type {opd.loss_type} compares all tokens"
        yield at(spec, "opd.top_k", rule, "remove the key, or set opd.loss_type: topk_reverse_kl")
    if opd.loss_params and opd.loss_type in ("reverse_kl", "forward_kl", "jsd", "topk_reverse_kl"):
        fix = "remove the key; jsd takes opd.beta and topk_reverse_kl opd.top_k"
        yield at(spec, "opd.loss_params", f"loss_type {opd.loss_type} takes none of them", fix)
    if not opd.stages and opd.divergence_weight == opd.policy.weight == 0:
        rule = "both parts of the loss have weight 0, so that nothing is learnt"
        yield at(spec, "opd.divergence_weight", rule, "set opd.divergence_weight: 1, or opd.policy.weight above 0")


def _stages(spec: DistillationSpec) -> Problems:
    for index, stage in enumerate(spec.opd.stages):
        for problem in _stage(spec, stage, is_last=index + 1 == len(spec.opd.stages)):
            yield problem.below(f"opd.stages.{index}")
    recompute = spec.opd.importance.problems.recompute
    if recompute.at_stages and len(spec.opd.stages) < 2:
        key = "opd.importance.problems.recompute.at_stages"
        fix = "give opd.stages, or use opd.importance.problems.recompute.every"
        yield at(spec, key, "the run has no second stage", fix)


def _stage(spec: DistillationSpec, stage: Stage, *, is_last: bool) -> Problems:
    opd = spec.opd
    divergence = opd.divergence_weight if stage.divergence_weight is None else stage.divergence_weight
    policy = opd.policy.weight if stage.policy_weight is None else stage.policy_weight
    if divergence == policy == 0:
        rule, fix = (
            "both parts of the stage's loss have weight 0",
            "give the stage a divergence_weight or a policy_weight above 0",
        )
        yield at(stage, "divergence_weight", rule, fix)
    if stage.until is None and not is_last:
        fix = "give its last step, or below 1 the share of the run's steps: until: 0.5"
        yield at(stage, "until", "a stage that another follows has an end", fix)
    if stage.until is not None and is_last:
        yield at(stage, "until", "the last stage ends with the run", "remove the key, or add the stage that follows")
    if stage.rollouts != "teacher":
        return
    key = "rollouts"
    if policy > 0 or stage.weight_schedule == "linear":
        rule = "a policy gradient is of answers that the student has sampled"
        yield at(stage, key, rule, "use rollouts: student, or policy_weight: 0 and weight_schedule: constant")
    if (stage.loss_type or opd.loss_type) == "sampled_reverse_kl":
        rule = "the log ratio of a sampled token estimates the reverse KL where the student has sampled it"
        yield at(stage, key, rule, "use rollouts: student, or loss_type: reverse_kl")
    if isinstance(spec, OpdAgentSpec):
        rule = "a file of answers holds no conversations with tools"
        yield at(stage, key, rule, "use rollouts: student, or kind: opd")
    elif opd.teacher_answers is None:
        rule = "the teacher's answers are read from files, nothing samples them in the run"
        fix = "set opd.teacher_answers to eval/generations.parquet of an evaluation of the teacher on data.train"
        yield at(stage, key, rule, fix)


_STRICT = "use rollout.schedule: strict"
_NO_CARRY = {
    "grpo": "a policy gradient compares a prompt's answers with one another, and corrects by one model's probabilities of them",
    "opd-agent": "a conversation with tools would have to keep the state of its tools over an update",
    "eval": "nothing is trained here, so nothing is carried over an update",
    "passrate": "nothing is trained here, so nothing is carried over an update",
}


def _schedule(spec: SamplingSpec) -> Problems:
    """Check the keys of the schedule carry, and its kind."""
    rollout = spec.rollout
    if rollout.schedule == "carry":
        if spec.kind in _NO_CARRY:
            yield at(spec, "rollout.schedule", _NO_CARRY[spec.kind], _STRICT)
        return
    for key in ("in_flight", "max_age"):
        if getattr(rollout, key) is not None:
            rule = (
                "it belongs to rollout.schedule carry; strict generates a step's answers at once, by the newest weights"
            )
            yield at(spec, f"rollout.{key}", rule, "remove the key, or set rollout.schedule: carry")
    if rollout.keep_prefixes:
        rule = "it belongs to rollout.schedule carry; no response of strict goes on over an update"
        yield at(spec, "rollout.keep_prefixes", rule, "remove the key, or set rollout.schedule: carry")


def _carry(spec: OpdSpec) -> Problems:
    """Reject losses, rewards and horizons under the schedule carry."""
    if spec.rollout.schedule != "carry":
        return
    opd = spec.opd
    if opd.reward_beta is not None:
        rule = "reward weighting compares the answers of one prompt, which rollout.schedule carry trains on in different updates"
        yield at(spec, "opd.reward_beta", rule, f"{_STRICT}, or remove opd.reward_beta")
    for key in _policy_weights(spec):
        rule = "a policy gradient compares the answers of one prompt, which rollout.schedule carry trains on in different updates"
        yield at(spec, key, rule, f"{_STRICT}, or a weight of 0")
    for key in _losses(spec, "sampled_reverse_kl"):
        rule = "it estimates the reverse KL from tokens of the student as it is, and rollout.schedule carry trains on earlier weights' tokens"
        yield at(spec, key, rule, f"{_STRICT}, or reverse_kl, which is exact whoever wrote the tokens")
    for index, stage in enumerate(opd.stages):
        if stage.rollouts == "teacher":
            rule = "answers that are read from a file are complete: there is nothing to carry over an update"
            yield at(spec, f"opd.stages.{index}.rollouts", rule, f"{_STRICT}, or rollouts: student")
    if opd.horizon.applies == "generate":
        rule = "under rollout.schedule carry an answer is begun in one step and ends in another, whose horizon may be a different one"
        yield at(spec, "opd.horizon.applies", rule, f"{_STRICT}, or applies: train")
    yield from _carried_sizes(spec)
    if spec.rollout.keep_prefixes:
        yield from _kept_prefixes(spec)


def _carried_sizes(spec: OpdSpec) -> Problems:
    rows, (in_flight, max_age) = spec.step_rows, spec.carried
    if in_flight < rows:
        rule = f"fewer answers at once than an update trains on ({rows}) would leave nothing to carry"
        yield at(spec, "rollout.in_flight", rule, f"use at least {rows}; twice as many is the default")
        return
    to_train = in_flight + max(in_flight - rows, rows)  # rows in hand, less the rows of the next update
    if to_train > max_age * rows:
        rule = f"with {in_flight} answers at once (rollout.in_flight) and {rows} an update, some would wait longer for theirs"
        fix = f"use at least {-(-to_train // rows)}, or a smaller rollout.in_flight"
        yield at(spec, "rollout.max_age", rule, fix)


def _kept_prefixes(spec: OpdSpec) -> Problems:
    key, rollout = "rollout.keep_prefixes", spec.rollout
    if rollout.free_cache_engine:
        rule = "the server's keys and values are lost with the memory that it gives back while the models train"
        fix = "set rollout.free_cache_engine: false, where its cache fits beside the training, or keep_prefixes: false"
        yield at(spec, key, rule, fix)
        return
    if rollout.name == "cpu":
        rule = "the rollout server `cpu` has no prefix cache"
        yield at(spec, key, rule, "remove the key, or set rollout.name: vllm")
    if not rollout.engine_kwargs.get("enable_prefix_caching", True):
        rule = "the keys and values lie in the server's prefix cache, which rollout.engine_kwargs.enable_prefix_caching: false switches off"
        yield at(spec, key, rule, "remove one of the two")


_RULES: tuple[tuple[Callable[..., Problems], type[BaseSpec]], ...] = (
    (_store, BaseSpec),
    (_device, RunSpec),
    (_batches, RunSpec),
    (_token_budgets, RunSpec),
    (_without_plan, RunSpec),
    (_policy_loss, GrpoSpec),
    (_rollout, SamplingSpec),
    (_teachers, DistillationSpec),
    (_each_teacher, DistillationSpec),
    (_lengths, DistillationSpec),
    (_rewards, DistillationSpec),
    (_losses_and_weights, DistillationSpec),
    (_stages, DistillationSpec),
    (_schedule, SamplingSpec),
    (_carry, OpdSpec),
)
"""The rules of each subject, and the specs that have it."""
