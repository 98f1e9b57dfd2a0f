"""Counts of micro-batches, and the metrics of a step.

A micro-batch returns sums, maxima and minima only; verl collects them in lists of lists. The driver divides once, so no mean
of means can arise.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import takewhile
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, distributed
from torch.distributed import ProcessGroup

from opd.experiment.algorithm import Reduction
from opd.losses import Output
from opd.update.head import Counts, LossTask
from opd.update.signs import extreme_signs, flatten, sign_metrics

TEACHER = "teacher/"  # of counts and metrics (`opd/teacher/NAME/...`) of one of several teachers
_OF_TEACHER = ("divergence", "tokens", "rows")
CHOICE = "opd/importance/"  # metrics of a choice of tokens, the same on each rank
# Sums of these are reported as <name> / tokens; some are there in some runs only.
_PER_TOKEN = {
    "opd/divergence": "sum/divergence",
    "opd/entropy": "sum/student_entropy",
    "opd/teacher_entropy": "sum/teacher_entropy",
    "opd/unshared_mass_student": "sum/unshared_student",
    "opd/unshared_mass_teacher": "sum/unshared_teacher",
    "opd/policy_clipped": "sum/policy_clipped",
    "opd/policy_drift": "sum/policy_drift",
}
_OF_ALL = ("sum/rows", "sum/counted")  # the same on ranks that share a sequence
_LARGEST_OF_RANKS = ("timing/", "perf/teacher_cache", "perf/max_memory_allocated_gb", CHOICE)


def on_host(counts: Mapping[str, list[Tensor | float]]) -> dict[str, list[float]]:
    """Return the numbers of several micro-batches, by one read from the device."""
    on_device = [value.double() for values in counts.values() for value in values if isinstance(value, Tensor)]
    read = iter(torch.stack(on_device).tolist() if on_device else ())
    return {
        name: [next(read) if isinstance(value, Tensor) else value for value in values]
        for name, values in counts.items()
    }


def total_of(value: Any) -> float:
    """Return the sum of nested lists; nan where they hold nan or both infinities, infinite beyond a float's range."""
    return torch.tensor(flatten(value), dtype=torch.float64).sum().item()


def largest(value: Any) -> float:
    """Return the largest number of nested lists, nan where any is."""
    return torch.tensor(flatten(value), dtype=torch.float64).max().item()


def over_sequence(counts: Mapping[str, list[float]], group: ProcessGroup) -> dict[str, list[float]]:
    """Return the counts, one a micro-batch, of the ranks that share a sequence: verl gathers from one of them.

    Sums are added. Of other counts, and of numbers of rows and tokens that all ranks see, the largest is taken.
    """
    of_ranks: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(of_ranks, dict(counts), group=group)

    def joined(name: str) -> list[float]:
        join: Callable[[Any], float] = total_of if name.startswith("sum/") and name not in _OF_ALL else largest
        return [join(of_one) for of_one in zip(*(of_rank[name] for of_rank in of_ranks), strict=True)]

    return {name: joined(name) for name in counts}


def agreement(micro_batch: TensorDict, log_prob: Tensor, counted: Tensor | None) -> Counts:
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


def micro_batch_counts(
    micro_batch: TensorDict, task: LossTask, output: Output, *, first_update: bool, teachers: Iterable[str] = ()
) -> Counts:
    """Return sums over one micro-batch's loss tokens, 0 for none; of several `teachers` every rank has the same counts."""
    found = output.statistics
    divergence, tokens = found["divergence"], found["divergence"].numel()
    num_trained = [int(mask.sum()) for mask in micro_batch["loss_mask"].unbind()]
    sums: Counts = {
        "sum/loss": output.loss.detach(),
        "sum/divergence": divergence.sum(),
        "sum/student_entropy": found["entropy"].sum(),
        "sum/tokens": float(tokens),
        "sum/rows": float(sum(num > 0 for num in num_trained)),
        "sum/counted": float(sum(num_trained)),
        "sum/nonfinite": found["nonfinite"].sum(),
        "max/divergence": divergence.max() if tokens else 0.0,
    }
    sums |= {
        f"sum/{name}": values.sum()
        for name, values in found.items()
        if name == "teacher_entropy" or name.startswith("unshared_")
    }
    sums |= {f"sum/{TEACHER}{name}/{of}": 0.0 for name in teachers for of in _OF_TEACHER}
    for part in task.references if teachers else ():
        own = divergence[part.tokens]
        num_rows = float(sum(num_trained[row] > 0 for row in part.rows))
        counts: tuple[Tensor | float, ...] = own.sum(), float(len(own)), num_rows
        sums |= {f"sum/{TEACHER}{part.name}/{of}": count for of, count in zip(_OF_TEACHER, counts, strict=True)}
    if first_update and "rollout_log_probs" in micro_batch:
        sums |= agreement(micro_batch, found["log_prob"], task.own)
    return sums


def policy_counts(task: LossTask, output: Output, *, weight: float) -> Counts:
    """Return sums over a micro-batch's tokens of its policy gradient; `weight` is in the loss, and not in the metric."""
    assert task.weights.policy is not None
    assert task.policy_inputs is not None
    losses, slopes = output.statistics["policy_loss"], output.statistics["policy_slope"]
    now = output.statistics["log_prob"]
    return {
        "sum/policy_loss": (losses * task.weights.policy).sum() / weight,
        # The loss of a token is flat where it is clipped, and nowhere else unless its answer is an average one.
        "sum/policy_clipped": ((slopes == 0) & (task.policy_inputs != 0)).sum().to(losses),
        "sum/policy_drift": ((now if task.old_log_probs is None else task.old_log_probs) - now).sum(),
    }


def totals(raw: Mapping[str, Any]) -> dict[str, float]:
    """Return the sums by name; refuse a step without any update."""
    total = {key: total_of(value) for key, value in raw.items() if key.startswith("sum/")}
    if "sum/tokens" not in total:
        raise ValueError("the update returned no counts: no mini-batch ran")
    return total


def skipped(raw: Mapping[str, Any]) -> tuple[int, int]:
    """Return the numbers of a step's updates, and of those that were skipped after the last good one."""
    norms = flatten(raw["grad_norm"])  # one an update; not finite where it was skipped
    return len(norms), sum(1 for _ in takewhile(lambda norm: not math.isfinite(norm), reversed(norms)))


def update_metrics(raw: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of a step's updates, without a prefix."""
    norms = flatten(raw["grad_norm"])
    finite = [norm for norm in norms if math.isfinite(norm)]
    metrics = {
        "num_updates": float(len(norms)),
        "skipped": float(len(norms) - len(finite)),
        "grad_norm": sum(finite) / len(finite) if finite else math.nan,
    }
    # verl's rate is the rate that the schedule has set for the next step.
    return metrics | {name: flatten(raw[name])[-1] for name in ("lr", "lr_used") if name in raw}


def shared_metrics(raw: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of a step that kinds without a divergence have in common."""
    metrics = {f"actor/{name}": value for name, value in update_metrics(raw).items()}
    metrics |= {f"actor/{name}": largest(raw[name]) for name in raw if name.startswith("perf/")}
    metrics |= {name: largest(raw[name]) for name in raw if name.startswith("timing/")}
    if "mfu" in raw:
        rates = flatten(raw["mfu"])
        metrics["perf/mfu/actor"] = sum(rates) / len(rates)
    return metrics


def answer_metrics(raw: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of a step on given answers."""
    total = totals(raw)
    mean = total["sum/loss"] / max(total["sum/tokens"], 1.0)
    return {"actor/loss": mean, "actor/num_tokens": total["sum/tokens"]} | shared_metrics(raw)


def reduce(raw: Mapping[str, Any], *, loss_agg_mode: Reduction = "token-mean") -> dict[str, float]:
    """Return the metrics of a distillation's step, named `opd/*`, from the lists that the workers returned."""
    total = totals(raw)
    tokens = total["sum/tokens"]
    metrics = {name: total[key] / max(tokens, 1.0) for name, key in _PER_TOKEN.items() if key in total}
    # Tokens without weight count here, and reach no head.
    divisor = max(total["sum/counted" if loss_agg_mode == "token-mean" else "sum/rows"], 1.0)
    metrics |= {
        f"opd/{name}": total[f"sum/{name}"] / divisor for name in ("loss", "policy_loss") if f"sum/{name}" in total
    }
    metrics |= {f"opd/{name}": value for name, value in update_metrics(raw).items()}
    metrics |= {
        "opd/num_tokens": tokens,
        "opd/batch_size": total["sum/rows"],
        "opd/nonfinite_tokens": total["sum/nonfinite"],
        "opd/unshared_tokens": total.get("sum/unshared_tokens", 0.0),
        "opd/skipped_step": metrics["opd/skipped"],
        "opd/divergence_max": largest(raw["max/divergence"]),
    }
    metrics |= {key: largest(raw[key]) for key in raw if key.startswith(_LARGEST_OF_RANKS)}
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
        "training/rollout_probs_diff_max": largest(raw["max/p_diff"]),
        "training/rollout_actor_probs_pearson_corr": pearson,
    }
