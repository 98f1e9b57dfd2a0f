"""Rules between the sections of a spec, which verl or the trainer would only notice in the middle of a run.

A rule between the keys of one section is that section's `check`. Each function here yields the problems of one subject.
"""

from collections.abc import Callable, Iterator
from typing import Any

from opd.experiment.algorithm import Stage
from opd.experiment.base import ASKS, TRAINS, value_at
from opd.experiment.defaults import CONTEXT, context_of, head_changes_of, layers_of, micro_batch
from opd.experiment.errors import Problem
from opd.experiment.kinds import BaseSpec, DistillationSpec, GrpoSpec, OpdAgentSpec, RunSpec, SamplingSpec, TrainSpec

Problems = Iterator[Problem]
_SP, _ATTENTION = "actor.ulysses_sequence_parallel_size", "model.attn_implementation"
_MINI, _STRICT = "actor.ppo_mini_batch_size", "use rollout.schedule: strict"


def check(spec: BaseSpec) -> list[Problem]:
    """Return every broken rule of the spec: within its sections first, then between them."""
    rules = [rule for cls, of_class in _RULES.items() if isinstance(spec, cls) for rule in of_class]
    return [*spec.broken_rules(), *(problem for rule in rules for problem in rule(spec))]


def _policy_loss(spec: GrpoSpec) -> Problems:
    if spec.rollout.num_samples == 1 and "adv_estimator" not in str(spec.overrides):
        rule = "an advantage compares the samples of one prompt, and one sample has none to compare with"
        yield spec.broken("rollout.num_samples", rule, "use 2 or more; 8 is the default")
    if spec.grpo.loss_agg_mode == "seq-mean-token-sum-norm" and "loss_scale_factor" not in str(spec.overrides):
        fix = "add the override actor_rollout_ref.actor.loss_scale_factor=N, or use seq-mean-token-sum"
        yield spec.broken("grpo.loss_agg_mode", "the mode divides by a number of tokens, and none is given", fix)
    if spec.grpo.kl_loss_type == "full" and spec.grpo.kl_loss_coef > 0 and spec.model.lora is not None:
        rule = "with model.lora the KL to the start model is an estimate from the sampled tokens"
        yield spec.broken("grpo.kl_loss_type", rule, "use low_var_kl, or remove model.lora")


def _attention(spec: RunSpec) -> Problems:
    attention, is_packed = spec.model.attn_implementation, spec.actor.use_remove_padding
    if spec.device == "cpu" and attention in ("flash_attention_2", "varlen"):
        yield spec.broken(_ATTENTION, "flash attention needs a CUDA device", "use sdpa")
    if spec.device == "cuda" and attention == "varlen" and not is_packed:
        yield spec.broken(_ATTENTION, "varlen takes packed rows", "use sdpa, or actor.use_remove_padding: true")
    if spec.num_sharing > 1 and not is_packed:
        yield spec.broken("actor.use_remove_padding", "ranks that share a sequence take packed rows", "set it to true")
    elif spec.num_sharing > 1 and attention not in ("varlen", "sdpa"):
        yield spec.broken(_ATTENTION, "ranks share a sequence by varlen and sdpa only", f"use one of them, or {_SP}: 1")


def _batches(spec: RunSpec) -> Problems:
    batch, mini, rows = spec.data.train_batch_size, spec.actor.ppo_mini_batch_size, spec.num_samples
    if batch % mini:
        yield spec.broken(_MINI, f"it must divide data.train_batch_size ({batch})", f"use a divisor of {batch}")
    for key in ("rollout.tensor_parallel_size", _SP):
        if spec.num_ranks % (value_at(spec, key) or 1):
            rule = f"it must divide the ranks (nnodes x gpus_per_node = {spec.num_ranks})"
            yield spec.broken(key, rule, "use a divisor")
    if spec.kind in TRAINS and mini * rows % spec.num_groups:
        rule = f"its rows (x {rows} samples = {mini * rows}) must divide over the {spec.num_groups} data-parallel ranks"
        yield spec.broken(_MINI, rule, f"use a multiple of {spec.num_groups}")
    if spec.kind in ASKS and spec.model.lora is not None:
        yield spec.broken("model.lora", "this kind trains nothing", "convert the student, and give that model.path")


def _micro_batches(spec: RunSpec) -> Problems:
    """Check the sizes of micro-batches where no memory plan replaces them."""
    batch, mini, samples = spec.data.train_batch_size, spec.actor.ppo_mini_batch_size, spec.num_samples
    row, sharing, of_updates, of_reads = spec.row_length, spec.num_sharing, spec.update_by_actor, spec.reads_by_actor
    for name, prompts in [("ppo", mini)] * of_updates + [("log_prob", batch)] * of_reads:
        size, cap = f"actor.{name}_micro_batch_size_per_gpu", f"actor.{name}_max_token_len_per_gpu"
        if value_at(spec, cap) * sharing < row:
            rule = f"it must (times ulysses_sequence_parallel_size {sharing}) hold the longest row, {row} tokens"
            yield spec.broken(cap, rule, f"use at least {-(-row // sharing)}, or remove the key")
        of_rank, left_over = divmod(prompts * samples, spec.num_groups)
        by_rows = spec.kind in TRAINS and not spec.actor.use_dynamic_bsz and not batch % mini and not left_over
        if by_rows and of_rank % value_at(spec, size):
            rows = f"{prompts} prompts x {samples} samples / {spec.num_groups} data-parallel ranks = {of_rank}"
            rule = f"with use_dynamic_bsz off it must divide a rank's rows ({rows})"
            yield spec.broken(size, rule, f"use a divisor of {of_rank}, or use_dynamic_bsz: true")


def _rollout(spec: SamplingSpec) -> Problems:
    rollout = spec.rollout
    if (spec.device == "cpu") != (rollout.name == "cpu"):
        rule = "device cpu has the rollout server `cpu`, and no other device has it"
        yield spec.broken("rollout.name", rule, "remove rollout.name, or set the other device")
    if spec.kind in ASKS and value_at(spec, "teacher") and not value_at(spec, "teacher.url"):
        yield spec.broken("teacher.url", "an evaluation asks a teacher on a server", "set it, or model.path alone")
    if value_at(spec, "teacher") and value_at(spec, "eval.checkpoint"):
        yield spec.broken("eval.checkpoint", "the teacher answers, and not this checkpoint", "remove it, or teacher")
    for key, greedy in (("rollout.temperature", ""), ("rollout.val.temperature", ", or 0")):
        temperature = value_at(spec, key)
        if rollout.name == "vllm" and (temperature > 2 or 0 < temperature < 0.01):
            yield spec.broken(key, "vLLM samples at temperatures from 0.01 to 2", f"use 0.01 to 2{greedy}")


def _teachers(spec: DistillationSpec) -> Problems:
    """Check that each row has one teacher, and what each teacher reads."""
    teachers, route = spec.teachers, spec.route
    if spec.teacher is not None and teachers:
        rule = "all rows have the one teacher (TEACHER_MODEL_PATH sets it too), or each has one of several"
        yield Problem(path="teachers", value=sorted(teachers), rule=rule, fix="remove teacher, or teachers and route")
    if not spec.all_teachers and (not spec.opd.stages or any(one.rollouts == "student" for one in spec.opd.stages)):
        rule = "without a teacher all answers and their log-probabilities come from opd.teacher_answers"
        yield spec.broken("teacher", rule, "give teacher.path, or opd.stages: [{rollouts: teacher}]")
    if teachers and not route.to:
        fix = f"name the teacher of each value in the column {route.by}: to: {{VALUE: NAME}}"
        yield spec.broken("route.to", "there are several teachers, and nothing says which one reads a row", fix)
    for value, name in route.to.items():
        if name not in teachers:
            fix = f"name one of {', '.join(sorted(teachers)) or 'them'}, or add it"
            yield Problem(path=f"route.to.{value}", value=name, rule="teachers has no teacher of that name", fix=fix)
    if teachers and spec.num_sharing > 1:
        yield spec.broken(_SP, "ranks that share a sequence read one teacher", "set it to 1, or use one teacher")
    offloads = [teacher.offload for teacher in spec.named_teachers.values()]
    for key, teacher in spec.named_teachers.items():
        if teacher.offload != offloads[0]:
            yield spec.broken(f"{key}.offload", "all teachers wait in one place", "give all of them the same, or none")
        same = (teacher.path, teacher.revision) == (spec.model.path, spec.model.revision) and spec.model.lora is None
        if teacher.refresh_every and not same:
            rule = "it gets the student's weights: it needs model.path and its revision, and takes no adapters"
            fix = "give it the student's path and revision without model.lora, or remove the key"
            yield spec.broken(f"{key}.refresh_every", rule, fix)
        longest = (teacher.max_prompt_length or 0) + spec.data.max_response_length
        budget = spec.actor.log_prob_max_token_len_per_gpu * spec.num_sharing
        if spec.reads_by_actor and spec.actor.use_dynamic_bsz and teacher.prompt is not None and budget < longest:
            rule = f"the token budget of a read, {budget}, must hold the teacher's longest row, {longest} tokens"
            fix = "raise actor.log_prob_max_token_len_per_gpu, or give a smaller max_prompt_length"
            yield spec.broken(f"{key}.max_prompt_length", rule, fix)


def _served(spec: DistillationSpec) -> Problems:
    """Check that served teachers are asked for what their servers can answer: log-probabilities of whole answers."""
    for name in (name for name, teacher in spec.teachers.items() if teacher.serve):
        rule = "the chart serves the one teacher of all rows"
        yield spec.broken(f"teachers.{name}.serve", rule, "start this server yourself, and give its url")
    served = spec.served_teachers
    for at, teacher in served.items():
        if teacher.top_k != next(iter(served.values())).top_k:
            yield spec.broken(f"{at}.top_k", "all served teachers report equally many tokens", "give all the same")
    for key in _keys(spec, "loss_type", "loss_type", "topk_reverse_kl") if spec.has_events else ():
        rule = "a served teacher has its own events: its `top_k` tokens, and all others as one"
        yield spec.broken(key, rule, "use reverse_kl, forward_kl or jsd")
    if spec.has_events and spec.rollout.temperature != 1:
        rule = "servers report log-probabilities at temperature 1, and others do not follow from the likeliest tokens"
        yield spec.broken("rollout.temperature", rule, "use 1, or let the ranks load the teacher")


def _keys(spec: DistillationSpec, of_run: str, of_stage: str, *values: str) -> list[str]:
    """Return the keys of the run and of its stages that have one of the values; without values any that is not 0."""
    keys = [f"opd.{of_run}", *(f"opd.stages.{index}.{of_stage}" for index in range(len(spec.opd.stages)))]
    return [key for key in keys if (value_at(spec, key) in values if values else value_at(spec, key))]


def _rewards(spec: DistillationSpec) -> Problems:
    policy = _keys(spec, "policy.weight", "policy_weight")
    for key in _keys(spec, "reward_beta", "reward_beta") + policy if spec.rollout.num_samples == 1 else ():
        rule = "rewards are compared between the samples of one prompt, and rollout.num_samples is 1"
        yield spec.broken(key, rule, "set rollout.num_samples to 2 or more, or remove the key")
    for key in policy if spec.opd.horizon.applies == "generate" else ():
        rule = "answers that end at the horizon (opd.horizon.applies: generate) are not whole, and have no scores"
        yield spec.broken(key, rule, "use opd.horizon.applies: train, or set the weight to 0")


def _loss(spec: DistillationSpec) -> Problems:
    opd, row = spec.opd, spec.row_length
    if opd.max_length < row:
        yield spec.broken("opd.max_length", f"it must hold the longest row: {row}", f"use {row}, or remove the key")
    if isinstance(spec, OpdAgentSpec) and opd.horizon.applies == "generate":
        yield spec.broken("opd.horizon.applies", "a conversation has a length for each of its turns", "use train")
    for index, stage in enumerate(opd.stages):
        for problem in _stage(spec, stage, is_last=index + 1 == len(opd.stages)):
            yield problem.below(f"opd.stages.{index}")


def _stage(spec: DistillationSpec, stage: Stage, *, is_last: bool) -> Problems:
    opd = spec.opd
    divergence = opd.divergence_weight if stage.divergence_weight is None else stage.divergence_weight
    policy = opd.policy.weight if stage.policy_weight is None else stage.policy_weight
    if divergence == policy == 0:
        yield stage.broken("divergence_weight", "both parts of the stage's loss have weight 0", "set one above 0")
    if stage.until is None and not is_last:
        yield stage.broken("until", "a stage that another follows has an end", "give a step, or a share of them: 0.5")
    if stage.until is not None and is_last:
        yield stage.broken("until", "the last stage ends with the run", "remove the key, or add the stage that follows")
    if stage.rollouts == "student":
        return
    if policy > 0:
        rule = "a policy gradient is of answers that the student has sampled"
        yield stage.broken("rollouts", rule, "use rollouts: student, or policy_weight: 0")
    if (stage.loss_type or opd.loss_type) == "sampled_reverse_kl":
        rule = "sampled_reverse_kl needs tokens that the student has sampled"
        yield stage.broken("rollouts", rule, "use rollouts: student, or loss_type: reverse_kl")
    if isinstance(spec, OpdAgentSpec):
        yield stage.broken("rollouts", "a file holds no conversations with tools", "use rollouts: student")
    elif opd.teacher_answers is None:
        fix = "set opd.teacher_answers to eval/generations.parquet of the teacher's evaluation on data.train"
        yield stage.broken("rollouts", "the teacher's answers are read from files", fix)


def _schedule(spec: SamplingSpec) -> Problems:
    """Check that the schedule carry and its keys belong to kind opd."""
    rollout = spec.rollout
    for key in ("in_flight", "max_age", "keep_prefixes") if rollout.schedule == "strict" else ():
        if getattr(rollout, key) not in (None, False):
            yield spec.broken(f"rollout.{key}", "it belongs to rollout.schedule carry", "remove it, or use carry")
    if rollout.schedule == "carry" and spec.kind != "opd":
        rule = "only kind opd carries answers over an update: others compare whole ones, use tools, or train nothing"
        yield spec.broken("rollout.schedule", rule, _STRICT)


def _carried(spec: DistillationSpec) -> Problems:
    """Check the answers in flight; reject losses, rewards and horizons that need an answer's tokens from one update."""
    rollout, rows = spec.rollout, spec.step_rows
    if rollout.schedule == "strict" or spec.kind != "opd":
        return
    in_flight, max_age = spec.carried
    to_train = in_flight + max(in_flight - rows, rows)  # rows in hand, less the rows of the next update
    if in_flight < rows:
        rule = f"fewer answers at once than an update trains on ({rows}) would leave nothing to carry"
        yield spec.broken("rollout.in_flight", rule, f"use at least {rows}; twice as many is the default")
    elif to_train > max_age * rows:
        rule = f"with {in_flight} answers at once (rollout.in_flight) and {rows} an update, some would wait longer"
        yield spec.broken("rollout.max_age", rule, f"use at least {-(-to_train // rows)}, or a lower rollout.in_flight")
    if rollout.keep_prefixes and (rollout.free_cache_engine or rollout.name == "cpu"):
        rule = "only vLLM with rollout.free_cache_engine: false has its keys and values still after an update"
        yield spec.broken("rollout.keep_prefixes", rule, "set free_cache_engine: false, or keep_prefixes: false")
    of_prompt = "it compares answers of one prompt, and carry trains them in different updates"
    sampled = "it needs tokens of the current student (reverse_kl does not); carry trains on earlier weights' tokens"
    complete = "of complete answers there is nothing to carry over an update"
    shorter = "carry ends an answer by data.max_response_length alone"
    by_rule = {
        of_prompt: _keys(spec, "policy.weight", "policy_weight") + _keys(spec, "reward_beta", "reward_beta"),
        sampled: _keys(spec, "loss_type", "loss_type", "sampled_reverse_kl"),
        complete: _keys(spec, "rollouts", "rollouts", "teacher"),
        shorter: _keys(spec, "horizon.applies", "horizon", "generate"),
    }
    for rule, keys in by_rule.items():
        yield from (spec.broken(key, rule, f"{_STRICT}, or another value of the key") for key in keys)


def context_problems(spec: RunSpec, context: int | None) -> Problems:
    """Yield a problem for a row that is longer than the context (see `context_of`) of the model that answers."""
    prompt, row = spec.data.max_prompt_length, spec.row_length
    if context is None or row <= context or spec.kind == "sft":
        return
    rule = f"with data.max_prompt_length={prompt} a row has up to {row} tokens; the server takes {context}, the model's"
    most = f"at most {context - prompt}, a smaller" if context > prompt else f"below {context} with a smaller"
    fix = f"{most} data.max_prompt_length, or a model with a larger {CONTEXT} in its config.json"
    yield spec.broken("data.max_response_length", f"{rule} {CONTEXT} (its rope_scaling does not count)", fix)


def config_problems(spec: RunSpec, config: Any, of: str = "model.path") -> Problems:
    """Yield why the model of a key, with this Hugging Face config, cannot answer the run's prompts or be trained on."""
    yield from context_problems(spec, context_of(config) if of == "model.path" else None)
    others = sorted(set(layers_of(config)) - {"full_attention"})
    if others and of == "model.path" and isinstance(spec, SamplingSpec) and spec.rollout.name == "cpu":
        rule = f"the CPU's rollout server has no cache for its layers of {', '.join(others)}"
        yield spec.broken("model.path", rule, "a model with full attention in all layers, or device: cuda and a GPU")
    if (changes := head_changes_of(config)) and isinstance(spec, TrainSpec):
        found = ", ".join(f"{key}: {value}" for key, value in changes.items())
        rule = f"its logits are more than hidden @ W.T (config.json has {found}), and training reads hidden states"
        yield spec.broken(of, rule, "a model of the Qwen, Llama or Mistral families")


_RULES: dict[type[BaseSpec], tuple[Callable[..., Problems], ...]] = {
    RunSpec: (_attention, _batches, _micro_batches),
    GrpoSpec: (_policy_loss,),
    SamplingSpec: (_rollout, _schedule),
    DistillationSpec: (_teachers, _served, _rewards, _loss, _carried),
}


def notes(spec: BaseSpec) -> Iterator[str]:
    """Yield what is allowed but probably not meant, one sentence each."""
    if isinstance(spec, GrpoSpec | DistillationSpec) and spec.rollout.is_truncated:
        keys = () if isinstance(spec, GrpoSpec) else _keys(spec, "loss_type", "loss_type", "sampled_reverse_kl")
        if isinstance(spec, GrpoSpec) or spec.opd.has_policy or keys:
            cut = "rollout.top_p" if spec.rollout.top_p < 1 else "rollout.top_k"
            yield f"{cut}: answers are sampled among fewer tokens than their log-probabilities are of; 1 and -1 are exact"
    reads = isinstance(spec, DistillationSpec) and any(stage.rollouts == "teacher" for stage in spec.opd.stages)
    if isinstance(spec, DistillationSpec) and spec.opd.teacher_answers and not reads:
        yield "opd.teacher_answers: not read, because no stage of opd.stages has rollouts: teacher"
    if isinstance(spec, RunSpec):
        by_tokens = spec.actor.use_dynamic_bsz or not spec.update_by_actor
        rows = spec.actor.ppo_mini_batch_size * spec.num_samples // spec.num_groups
        default = micro_batch(spec.kind, rows)
        if by_tokens and spec.actor.ppo_micro_batch_size_per_gpu != default:
            why = "actor.use_dynamic_bsz cuts by tokens" if spec.update_by_actor else "opd.train_tokens"
            yield f"actor.ppo_micro_batch_size_per_gpu: not read, because of {why}"
        if not by_tokens and spec.actor.ppo_max_token_len_per_gpu != 2 * spec.row_length:
            yield "actor.ppo_max_token_len_per_gpu: not read without actor.use_dynamic_bsz: true"
