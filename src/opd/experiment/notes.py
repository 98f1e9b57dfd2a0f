"""Remarks on what a spec may hold but probably does not mean."""

from __future__ import annotations

from collections.abc import Iterator

from opd.experiment.kinds import BaseSpec, DistillationSpec, EvalSpec, RunSpec, SamplingSpec


def notes(spec: BaseSpec) -> Iterator[str]:
    """Yield what is allowed but probably not meant, one sentence each."""
    if isinstance(spec, DistillationSpec):
        yield from _distillation(spec)
    if isinstance(spec, SamplingSpec):
        variant = spec.eval.instruction_variant if isinstance(spec, EvalSpec) else "boxed"
        if (spec.reward.function, variant) == ("math_dapo", "boxed"):
            yield (
                "reward.function math_dapo looks for `Answer:`, but prepared prompts ask for \\boxed{}: unless your "
                "files differ every answer scores as wrong; use math_reward or math_verify"
            )
        if (spec.reward.function, variant) == ("math_reward", "dapo"):
            yield "reward.function math_reward looks for \\boxed{} while variant dapo asks for `Answer:`; use math_dapo"
    if isinstance(spec, RunSpec):
        yield from _micro_batches(spec)
    unused = [key for key in ("endpoint", "region", "addressing") if getattr(spec.store, key) is not None]
    if unused and not spec.store.url.startswith(("s3://", "s3a://")):
        yield f"store.{', store.'.join(unused)}: for S3 only, and store.url is {spec.store.url}: not used"


def _distillation(spec: DistillationSpec) -> Iterator[str]:
    for name in sorted(spec.teachers.keys() - set(spec.routed)):
        yield f"teachers.{name}: no value in route.to leads to it, so it is loaded and reads nothing"
    decoded = spec.rollout.max_num_seqs
    of_each = -(-spec.carried[0] * spec.rollout.tensor_parallel_size // spec.num_ranks)
    if spec.rollout.schedule == "carry" and of_each > decoded:
        yield (
            f"rollout.max_num_seqs {decoded}: a server has {of_each} responses in flight (rollout.in_flight) and "
            f"decodes {decoded} at once, so the others wait; set it to {of_each}, or a smaller rollout.in_flight"
        )
    losses = {spec.opd.loss_type, *(stage.loss_type for stage in spec.opd.stages)}
    off_policy = spec.actor.ppo_epochs > 1 or spec.actor.ppo_mini_batch_size < spec.data.train_batch_size
    if "sampled_reverse_kl" in losses and (spec.rollout.is_truncated or off_policy):
        yield (
            "opd.loss_type sampled_reverse_kl: its mean is the reverse KL only of tokens from the student's whole "
            "distribution, in a step of one update; set rollout.top_p: 1, rollout.top_k: -1 and one mini-batch a step"
        )


def _micro_batches(spec: RunSpec) -> Iterator[str]:
    """Yield sizes of micro-batches that differ from their defaults although something else counts."""
    actor, default = spec.actor, 4 if spec.trains else 2
    by_tokens = actor.use_dynamic_bsz or not spec.update_by_actor
    if by_tokens and actor.ppo_micro_batch_size_per_gpu != default:
        by_actor = "actor.use_dynamic_bsz: micro-batches are cut by tokens"
        why = by_actor if spec.update_by_actor else "opd.train_tokens"
        yield f"actor.ppo_micro_batch_size_per_gpu: not read, because of {why}"
    if not by_tokens and actor.ppo_max_token_len_per_gpu != 2 * spec.row_length:
        fix = "set actor.use_dynamic_bsz: true"
        yield f"actor.ppo_max_token_len_per_gpu: not read, because micro-batches are cut by rows; {fix}"
