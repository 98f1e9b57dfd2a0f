"""Counts of a distillation's micro-batches, and the step's metrics. Only sums and extremes leave a micro-batch; the driver divides once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from tensordict import TensorDict
from torch import distributed
from torch.distributed import ProcessGroup

from opd.experiment.algorithm import Reduction
from opd.losses import Output
from opd.update.counts import Counts, flatten, largest, totals, update_metrics
from opd.update.loss_task import LossTask
from opd.update.signs import extreme_signs, sign_metrics
from opd.update.teacher_cache import HiddenCache

TEACHER = "teacher/"  # of counts and metrics (`opd/teacher/NAME/...`) of one of several teachers
_OF_TEACHER = ("divergence", "tokens", "rows")
CHOICE = "opd/importance/"  # metrics of a choice of tokens, the same on each rank
# Sums of these are reported as <name> / tokens; the last two where one model has tokens that the other lacks.
_PER_TOKEN = {
    "opd/divergence": "sum/divergence",
    "opd/entropy": "sum/student_entropy",
    "opd/teacher_entropy": "sum/teacher_entropy",
    "opd/unshared_mass_student": "sum/unshared_student",
    "opd/unshared_mass_teacher": "sum/unshared_teacher",
}
_OF_ALL = ("sum/rows", "sum/counted")
_LARGEST_OF_RANKS = (
    "timing/teacher_s",
    "timing/student_s",
    "timing/score_s",
    "perf/max_memory_allocated_gb",
    "perf/teacher_cache_mb",
    "perf/teacher_cache_host_mb",
    "perf/teacher_cache_copied_mb",
)


def micro_batch_counts(micro_batch: TensorDict, task: LossTask, output: Output, *, first_update: bool) -> Counts:
    """Return sums over one micro-batch's loss tokens; empty micro-batches give zeros."""
    divergence, tokens = output.statistics["divergence"], output.statistics["divergence"].numel()
    rows = micro_batch["loss_mask"]
    num_trained = [int(mask.sum()) for mask in rows.unbind()]
    sums: Counts = {
        "sum/loss": output.loss.detach(),
        "sum/divergence": divergence.sum(),
        "sum/student_entropy": output.statistics["entropy"].sum(),
        "sum/teacher_entropy": output.statistics["teacher_entropy"].sum(),
        "sum/tokens": float(tokens),
        "sum/rows": float(sum(num > 0 for num in num_trained)),
        "sum/counted": float(sum(num_trained)),
        "sum/nonfinite": output.statistics["nonfinite"].sum(),
        "max/divergence": divergence.max() if tokens else 0.0,
    }
    sums |= {f"sum/{name}": values.sum() for name, values in output.statistics.items() if name.startswith("unshared_")}
    for part in task.parts:
        assert part.tokens is not None
        of_part = part.tokens
        sums |= {
            f"sum/{TEACHER}{part.name}/divergence": divergence[of_part].sum(),
            f"sum/{TEACHER}{part.name}/tokens": float(len(of_part)),
            f"sum/{TEACHER}{part.name}/rows": float(sum(num_trained[row] > 0 for row in part.rows)),
        }
    if first_update and "rollout_log_probs" in micro_batch:
        sums.update(agreement(micro_batch, output.statistics["log_prob"], task.own))
    return sums


def no_teacher_counts(names: Iterable[str]) -> dict[str, float]:
    """Return the counts of several teachers in a micro-batch without their rows."""
    return {f"sum/{TEACHER}{name}/{of}": 0.0 for name in names for of in _OF_TEACHER}


def policy_counts(task: LossTask, output: Output, *, weight: float) -> Counts:
    """Return sums over a micro-batch's tokens of its policy gradient.

    Args:
        weight: of the policy loss in the loss, which the metric is without.
    """
    assert task.weights.policy is not None
    assert task.policy_inputs is not None
    losses, slopes = output.statistics["policy_loss"], output.statistics["policy_slope"]
    sums: Counts = {
        "sum/policy_loss": (losses * task.weights.policy).sum() / weight,
        # The loss of a token is flat where it is clipped, and nowhere else unless its answer is an average one.
        "sum/policy_clipped": ((slopes == 0) & (task.policy_inputs != 0)).sum().to(losses),
    }
    if task.old_log_probs is not None:
        sums["sum/policy_drift"] = (task.old_log_probs - output.statistics["log_prob"]).sum()
    return sums


def over_sequence(counts: Mapping[str, Any], group: ProcessGroup, device: torch.device) -> dict[str, Any]:
    """Return the counts, each a number or one a micro-batch, of the ranks that share a sequence: verl gathers from one of them.

    Sums are added. Of other counts, and of numbers of rows and tokens that all ranks see, the largest is taken.
    """
    names: dict[bool, list[str]] = {True: [], False: []}
    for name in counts:
        names[name.startswith("sum/") and name not in _OF_ALL].append(name)
    total: dict[str, Any] = {}
    for is_sum, some in names.items():
        values = torch.tensor([counts[name] for name in some], dtype=torch.float64, device=device)
        if is_sum:
            distributed.all_reduce(values, distributed.ReduceOp.SUM, group=group)
        else:  # a reduction by MAX alone keeps or loses nan by the order
            both = torch.stack([values.nan_to_num(-math.inf, math.inf, -math.inf), values.isnan().double()])
            distributed.all_reduce(both, distributed.ReduceOp.MAX, group=group)
            values = both[0].masked_fill(both[1] > 0, math.nan)
        total.update(zip(some, values.tolist(), strict=True))
    return total


def cache_counts(cache: HiddenCache) -> dict[str, float]:
    """Return MiB of a step's hidden states, of the part on the host, and of what crossed PCIe."""
    return {
        "perf/teacher_cache_mb": (cache.device_bytes + cache.host_bytes) / 2**20,
        "perf/teacher_cache_host_mb": cache.host_bytes / 2**20,
        "perf/teacher_cache_copied_mb": cache.copied_bytes / 2**20,
    }


def agreement(micro_batch: TensorDict, log_prob: torch.Tensor, counted: torch.Tensor | None) -> Counts:
    """Return moments of p(token) under rollout and actor, before the first update of a step (they should be the same model)."""
    masks = micro_batch["response_mask"].unbind()
    rollout = torch.cat([lp[m.bool()] for lp, m in zip(micro_batch["rollout_log_probs"].unbind(), masks, strict=True)])
    if counted is not None:
        rollout = rollout[counted.to(rollout.device)]
    x, y = rollout.to(log_prob.device, non_blocking=True).double().exp(), log_prob.double().exp()
    diff = (x - y).abs()
    return {
        "sum/p_tokens": float(x.numel()),
        "sum/p_diff": diff.sum(),
        "sum/p_x": x.sum(),
        "sum/p_y": y.sum(),
        "sum/p_xx": (x * x).sum(),
        "sum/p_yy": (y * y).sum(),
        "sum/p_xy": (x * y).sum(),
        "max/p_diff": diff.max() if x.numel() else 0.0,
    }


def reduce(raw: Mapping[str, Any], *, loss_agg_mode: Reduction = "token-mean") -> dict[str, float]:
    """Return the step's metrics, named `opd/*`, from the lists that the workers returned.

    Args:
        loss_agg_mode: says by what an update's loss was divided.

    Raises:
        ValueError: no update was made.
    """
    total = totals(raw)
    tokens = total["sum/tokens"]
    metrics = {name: total[key] / max(tokens, 1.0) for name, key in _PER_TOKEN.items() if key in total}
    # Tokens without weight count here, and reach no head.
    divisor = max(total["sum/counted" if loss_agg_mode == "token-mean" else "sum/rows"], 1.0)
    metrics["opd/loss"] = total["sum/loss"] / divisor
    if "sum/policy_loss" in total:
        metrics["opd/policy_loss"] = total["sum/policy_loss"] / divisor
        metrics["opd/policy_clipped"] = total["sum/policy_clipped"] / max(tokens, 1.0)
        metrics["opd/policy_drift"] = total.get("sum/policy_drift", 0.0) / max(tokens, 1.0)
    metrics |= {f"opd/{name}": value for name, value in update_metrics(raw).items()}
    metrics |= {
        "opd/num_tokens": tokens,
        "opd/batch_size": total["sum/rows"],
        "opd/nonfinite_tokens": total["sum/nonfinite"],
        "opd/unshared_tokens": total.get("sum/unshared_tokens", 0.0),
        "opd/skipped_step": metrics["opd/skipped"],
        "opd/divergence_max": largest(flatten(raw["max/divergence"])),
    }
    for key in raw:
        if key in _LARGEST_OF_RANKS or key.startswith(CHOICE):
            metrics[key] = largest(flatten(raw[key]))
    for name in sorted({key.split("/")[2] for key in total if key.startswith(f"sum/{TEACHER}")}):
        count = {of: total[f"sum/{TEACHER}{name}/{of}"] for of in _OF_TEACHER}
        metrics |= {f"opd/{TEACHER}{name}/{of}": value for of, value in count.items()}
        metrics[f"opd/{TEACHER}{name}/divergence"] /= max(count["tokens"], 1.0)
    return metrics | sign_metrics(total) | extreme_signs(raw) | agreement_metrics(total, raw)


def agreement_metrics(total: Mapping[str, float], raw: Mapping[str, Any]) -> dict[str, float]:
    """Return verl's comparison of rollout and actor from global moments."""
    n = total.get("sum/p_tokens", 0.0)
    if n == 0:
        return {}
    cov = total["sum/p_xy"] / n - total["sum/p_x"] * total["sum/p_y"] / n**2
    var_x = total["sum/p_xx"] / n - (total["sum/p_x"] / n) ** 2
    var_y = total["sum/p_yy"] / n - (total["sum/p_y"] / n) ** 2
    pearson = cov / math.sqrt(var_x * var_y) if var_x > 0 and var_y > 0 else math.nan
    return {
        "training/rollout_probs_diff_mean": total["sum/p_diff"] / n,
        "training/rollout_probs_diff_max": largest(flatten(raw["max/p_diff"])),
        "training/rollout_actor_probs_pearson_corr": pearson,
    }
