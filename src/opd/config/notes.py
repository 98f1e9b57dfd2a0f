"""What a spec may say but probably does not mean."""

from __future__ import annotations

from opd.config.defaults import DEFAULTS, Lookup
from opd.config.kinds import BaseSpec, DistillationSpec, EvalSpec

_UPDATE_SIZES = ("actor.ppo_micro_batch_size_per_gpu", "actor.ppo_max_token_len_per_gpu")


def _unread_sizes(spec: DistillationSpec) -> list[str]:
    """Keys of a micro-batch's size that are not their defaults although the update does not read them."""
    if spec.update_by_actor:
        return []
    look = Lookup(spec.kind, type(spec), spec.model_dump())
    sizes = [default for default in DEFAULTS if default.path in _UPDATE_SIZES]
    return [default.path for default in sizes if default.value(look) != look.typed(default.path)]


def notes(spec: BaseSpec) -> list[str]:
    """What is allowed but probably not meant, one sentence each."""
    out = []
    if isinstance(spec, DistillationSpec):
        idle = [name for name in sorted(spec.teachers) if name not in spec.routed]
        out += [
            f"teachers.{name}: no value in route.to leads to it, so it is loaded and reads nothing" for name in idle
        ]
        if spec.device == "cuda" and spec.opd.without_kernels:
            lacking = ", ".join(spec.opd.without_kernels)
            out.append(
                f"opd: the fused CUDA kernels have no {lacking.removeprefix('the ')}: where it is used the heads run as plain fp32 products, "
                "which are slower"
            )
        out += [
            f"{key}: this distillation does not read it: opd.train_tokens says how its update is cut, or, on packed rows of a GPU where "
            "that is unset, the memory plan"
            for key in _unread_sizes(spec)
        ]
        if spec.rollout.schedule == "carry":
            num_servers = spec.trainer.nnodes * spec.trainer.gpus_per_node // spec.rollout.tensor_parallel_size
            of_each = -(-spec.carried[0] // num_servers)
            if of_each > (num_decoded := spec.rollout.max_num_seqs):
                out.append(
                    f"rollout.max_num_seqs {num_decoded}: a rollout server has {of_each} responses in flight (rollout.in_flight) and decodes "
                    f"{num_decoded} at once, so the others wait; set it to {of_each}, or a smaller rollout.in_flight"
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
