"""Counts of a micro-batch by which `opd.monitor` tells faults that no error shows."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from opd.losses import Output
from opd.runs.headline import JUDGED_TOKENS, LEAST, MOST
from opd.update.head import Counts, LossTask
from opd.update.parked import local

# Twice the largest half-precision number: logits that a model gives differ by no more, so only a floored log-probability
# (`opd.losses.divergences.FLOOR`) makes a token's divergence larger.
LARGEST_DIVERGENCE = 2 * 65504.0
NUM_COMPARED = 1024
"""Tokens of a micro-batch whose neighbours are looked at: a bound on memory, [NUM_COMPARED, d] at a time."""
EXTREMES = {
    "sum/tokens": (JUDGED_TOKENS, {"opd/teacher_entropy", "opd/teacher_entropy_std"}),
    "sum/neighbours": (JUDGED_TOKENS, {"opd/teacher_prefers_neighbour"}),
    "sum/weights": (1e-300, {"opd/weight_change"}),
}
"""The count that signs with extremes are divided by, its least value, below which they are chance, and the signs."""
NUM_WATCHED = 8
"""Entries of each local parameter by which it is seen whether an update moved the weights."""


def token_signs(output: Output, *, is_sampled: bool) -> Counts:
    """Return sums over a micro-batch's tokens, `is_sampled` if drawn from the whole distribution of these weights.

    Then each token's -log p has its entropy as its mean. The sum of the differences over the root of their squares is about
    standard normal.
    """
    found = output.statistics
    is_finite = ~found["nonfinite"] & found["log_prob"].isfinite() & found["teacher_log_prob"].isfinite()

    def surprise(name: str) -> Tensor:
        return -found[name].double().masked_fill(~is_finite, 0.0)

    # A jsd is bounded: the teacher's log-probability shows a floored token too.
    is_floored = (found["divergence"] > LARGEST_DIVERGENCE) | (found["teacher_log_prob"] < -LARGEST_DIVERGENCE)
    sums: Counts = {
        "sum/teacher_entropy_squared": found["teacher_entropy"].double().square().sum(),
        "sum/floored": is_floored.sum(),
        "sum/told": is_finite.sum(),
        "sum/teacher_surprise": surprise("teacher_log_prob").sum(),
    }
    if is_sampled:
        student = surprise("log_prob")
        gap = (student - found["entropy"].double()).masked_fill(~is_finite, 0.0)
        sums |= {
            "sum/sampled": is_finite.sum(),
            "sum/surprise": student.sum(),
            "sum/surprise_gap": gap.sum(),
            "sum/surprise_gap_squared": gap.square().sum(),
        }
    return sums


@torch.no_grad()
def neighbour_signs(task: LossTask) -> Counts:
    """Return how often the teacher's logit is larger for the token before or after than for the token itself.

    The first `NUM_COMPARED` tokens with another token next to them in their row count. Ranks that share rows return nothing.
    """
    if task.own is not None:
        return {}
    if len(task.references) > 1:
        found_of = [neighbour_signs(task.of(each)) for each in task.references]
        return {name: sum(found[name] for found in found_of) for name in found_of[0]}
    positions, ids = task.positions[: NUM_COMPARED + 1], task.token_ids[: NUM_COMPARED + 1]
    [reference] = task.references
    targets = reference.targets()
    assert targets is not None  # a run with a served teacher has no signs
    weight, hidden = targets.weight, targets.hidden[: len(ids)].float()
    vocab = task.sizes.get("valid_vocab") or len(weight)
    rows = weight[ids.clamp(0, vocab - 1)]
    is_shared, own = (ids >= 0) & (ids < vocab), (hidden * rows).sum(-1)
    # Rows have a prompt between them, so adjacent tokens are of one row.
    is_pair = (positions[1:] - positions[:-1] == 1) & (ids[1:] != ids[:-1]) & is_shared[1:] & is_shared[:-1]
    found = [is_pair.sum()]
    for place, other in ((slice(None, -1), slice(1, None)), (slice(1, None), slice(None, -1))):
        found.append((((hidden[place] * rows[other]).sum(-1) > own[place]) & is_pair).sum())
    names = ("sum/neighbours", "sum/next_preferred", "sum/previous_preferred")
    return dict(zip(names, found, strict=True))


def preference_signs(token_rows: Tensor, scores: Tensor, output: Output) -> Counts:
    """Return moments of (score [B], the teacher's mean log-probability less the student's) over rows, of which each token has one."""
    difference = (output.statistics["teacher_log_prob"] - output.statistics["log_prob"]).double()
    difference = difference.masked_fill(output.statistics["nonfinite"] | ~difference.isfinite(), 0.0)
    token_rows, scores = token_rows.to(difference.device), scores.to(difference.device).double()
    num = torch.bincount(token_rows, minlength=len(scores))
    mean = torch.zeros_like(scores).index_add_(0, token_rows, difference) / num.clamp(min=1)
    mean, scores = mean[num > 0], scores[num > 0]
    return {
        "sum/preferred_rows": float(len(mean)),
        "sum/score": scores.sum(), "sum/score_squared": (scores * scores).sum(), "sum/preferred": mean.sum(),
        "sum/preferred_squared": (mean * mean).sum(), "sum/score_preferred": (scores * mean).sum(),
    }  # fmt: skip


@torch.no_grad()
def watched_entries(module: nn.Module) -> Tensor:
    """Return a few entries [M] of every trained parameter of this rank, in fp64 on the host."""
    if torch.cuda.is_available():
        torch.cuda.current_stream().synchronize()  # what an offload leaves on the host may still be on its way there
    trained = (local(parameter) for parameter in module.parameters() if parameter.requires_grad)
    return torch.cat([part.reshape(-1)[-NUM_WATCHED:].float() for part in trained]).cpu().double()


def weight_signs(before: Tensor, after: Tensor) -> dict[str, list[float]]:
    """Return sums of squares of watched entries and of their changes by an update, as lists."""
    entries = {"sum/weights_moved": after - before, "sum/weights": before}
    return {name: [float(each.square().sum())] for name, each in entries.items()}


def flatten(value: Any) -> list[float]:
    """Return the numbers of nested lists, in their order."""
    return [one for item in value for one in flatten(item)] if isinstance(value, list | tuple) else [float(value)]


def extreme_signs(raw: Mapping[str, Any]) -> dict[str, float]:
    """Return `NAME/rank_min` and `NAME/rank_max` of a few signs over the larger micro-batches of all ranks."""
    sums = {key: flatten(value) for key, value in raw.items() if key.startswith("sum/")}
    found: dict[str, list[float]] = {}
    for counted, (least, names) in EXTREMES.items():
        num = len(sums.get(counted, []))
        aligned = {key: values for key, values in sums.items() if len(values) == num}
        for place in range(num):
            one = {key: values[place] for key, values in aligned.items()}
            signs = sign_metrics(one) if one[counted] >= least else {}
            for name in names & signs.keys():
                found.setdefault(name, []).append(signs[name])
    extremes = {f"{name}{LEAST}": min(values) for name, values in found.items()}
    return extremes | {f"{name}{MOST}": max(values) for name, values in found.items()}


def sign_metrics(total: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of summed counts, without those that lack counts or a divisor."""
    metrics = {}
    if (tokens := total.get("sum/tokens")) and "sum/teacher_entropy" in total:
        mean = metrics["opd/teacher_entropy"] = total["sum/teacher_entropy"] / tokens
        if "sum/teacher_entropy_squared" in total:
            variance = total["sum/teacher_entropy_squared"] / tokens - mean**2
            metrics["opd/teacher_entropy_std"] = math.sqrt(max(variance, 0.0))
            metrics["opd/floored_share"] = total["sum/floored"] / tokens
    if total.get("sum/told"):
        metrics["opd/teacher_surprise"] = total["sum/teacher_surprise"] / total["sum/told"]
    if sampled := total.get("sum/sampled"):
        metrics["opd/surprise"] = total["sum/surprise"] / sampled
        metrics["opd/surprise_gap"] = total["sum/surprise_gap"] / sampled
        if spread := math.sqrt(total["sum/surprise_gap_squared"]):
            metrics["opd/surprise_gap_z"] = total["sum/surprise_gap"] / spread
    if pairs := total.get("sum/neighbours"):
        preferred = max(total["sum/next_preferred"], total["sum/previous_preferred"])
        metrics |= {"opd/teacher_prefers_neighbour": preferred / pairs, "opd/teacher_pairs": pairs}
    if (rows := total.get("sum/preferred_rows", 0.0)) > 1:
        covariance = total["sum/score_preferred"] - total["sum/score"] * total["sum/preferred"] / rows
        variances = [total[f"sum/{name}_squared"] - total[f"sum/{name}"] ** 2 / rows for name in ("score", "preferred")]
        # What rounding leaves of a variance of 0 is no spread.
        if variances[0] > 1e-9 * max(total["sum/score_squared"], 1e-30) and variances[1] > 1e-12:
            metrics["opd/teacher_preference"] = covariance / math.sqrt(variances[0] * variances[1])
    if total.get("sum/weights"):
        metrics["opd/weight_change"] = math.sqrt(total["sum/weights_moved"] / total["sum/weights"])
    return metrics
