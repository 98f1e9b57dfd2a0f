"""Scores of tokens by student entropy and divergence, and the choice of trained tokens (TIP, https://arxiv.org/abs/2604.14084).

Each function takes all trained tokens of a global batch, gathered from its ranks.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from opd.experiment.algorithm import LossType, Score, TokenImportance
from opd.losses.divergences import own_function

QUANTILES = (0.5, 0.9, 0.98)


def places(row_index: Tensor) -> tuple[Tensor, Tensor]:
    """Return [T] place of each token in its row, and [T] number of tokens of its row."""
    order = row_index.argsort(stable=True)
    _, counts = torch.unique_consecutive(row_index[order], return_counts=True)
    starts = counts.cumsum(0) - counts
    place, size = torch.empty_like(row_index), torch.empty_like(row_index)
    place[order] = torch.arange(len(row_index), device=row_index.device) - starts.repeat_interleave(counts)
    size[order] = counts.repeat_interleave(counts)
    return place, size


def _wide(values: Tensor) -> Tensor:
    """Return float32 (float64 stays): 16 bits are too few to rank tokens by."""
    return values.detach() if values.dtype == torch.float64 else values.detach().float()


def quantile(values: Tensor, q: float) -> Tensor:
    """Return the q-quantile of [T] values, T >= 1, linear between neighbours; unlike torch's it has no limit of T."""
    ordered, place = values.sort().values, q * (len(values) - 1)
    low = int(place)
    return torch.lerp(ordered[low], ordered[min(low + 1, len(values) - 1)], place - low)


def normalised(values: Tensor, clip_q: float | None) -> Tensor:
    """Return [T] values scaled to [0, 1] by the smallest value and the largest, or the `clip_q`-quantile, from which on all are 1.

    Where all are equal, all are 0. Values that are not finite take no part in the range and become inf.
    """
    values = _wide(values)
    finite = torch.isfinite(values)
    counted = values[finite] if bool(finite.any()) else values.new_zeros(1)
    low, high = counted.min(), counted.max() if clip_q is None else quantile(counted, clip_q)
    scaled = (values.clamp(max=high) - low) / torch.where(high > low, high - low, torch.inf)
    return scaled.masked_fill(~finite, torch.inf)


class Tokens(NamedTuple):
    """The trained tokens of a batch, [T] each; entropy and divergence are empty for scores that need none."""

    selection: TokenImportance
    row_index: Tensor
    entropy: Tensor = torch.empty(0)
    divergence: Tensor = torch.empty(0)


TokenScore = Callable[[Tokens], Tensor]


def _position(tokens: Tokens) -> Tensor:
    """Return the share of its row's tokens up to a token, from the start or, with `first`, from the end."""
    place, size = places(tokens.row_index)
    return (place + 1 if tokens.selection.position == "last" else size - place).double() / size


def soft_or(tokens: Tokens) -> Tensor:
    """Return TIP's score h + d - h d of both quantities scaled to [0, 1]; inf where a quantity is not finite."""
    h = normalised(tokens.entropy, tokens.selection.entropy_clip_q)
    d = normalised(tokens.divergence, tokens.selection.divergence_clip_q)
    return torch.where(torch.isinf(h) | torch.isinf(d), torch.inf, h + d - h * d)


def _q3(tokens: Tokens) -> Tensor:
    """Return TIP's score d (1 - h) of over-confident wrong tokens; d is KL(p_T || p_S) in nats."""
    sure = 1.0 - normalised(tokens.entropy, tokens.selection.entropy_clip_q)
    return _finite_or_first(tokens.divergence * sure)


def _finite_or_first(values: Tensor) -> Tensor:
    return torch.where(torch.isfinite(values), _wide(values), torch.inf)


TOKEN_SCORES: dict[str, TokenScore] = {
    "random": lambda tokens: torch.ones(len(tokens.row_index), device=tokens.row_index.device),
    "position": _position,
    "entropy": lambda tokens: _finite_or_first(tokens.entropy),
    "divergence": lambda tokens: _finite_or_first(tokens.divergence),
    "soft_or": soft_or,
    "q3": _q3,
}
"""Scores by name; the highest are kept."""


def register_token_score(name: str) -> Callable[[TokenScore], TokenScore]:
    """Return a decorator that registers a function of `Tokens` -> scores [T].

    A score costs forwards of student and teacher before the update, unless `TokenImportance` says that it needs none.
    """

    def register(function: TokenScore) -> TokenScore:
        TOKEN_SCORES[name] = function
        return function

    return register


def scored_divergence(score: Score, loss_type: LossType) -> LossType:
    """Return the divergence that tokens are scored by: for `q3` KL(p_T || p_S), else the step's loss, or what it estimates."""
    if score == "q3":
        return "forward_kl"
    return "reverse_kl" if loss_type in ("sampled_reverse_kl", "topk_reverse_kl") else loss_type


def choose_tokens(selection: TokenImportance, row_index: Tensor, *, seed: tuple[int, ...], **values: Tensor) -> Tensor:
    """Return [T] bool: which of T trained tokens a selection keeps; `values` are the quantities of `Tokens`."""
    if (name := selection.score) == "none":
        return torch.ones_like(row_index, dtype=torch.bool)
    return select_tokens(token_score(name)(Tokens(selection, row_index, **values)), row_index, selection, seed=seed)


def token_score(name: str) -> TokenScore:
    """Return a registered score, or the function that `package.module:name` names."""
    return TOKEN_SCORES.get(name) or own_function("opd.importance.tokens.score", name, TOKEN_SCORES)


def select_tokens(scores: Tensor, row_index: Tensor, selection: TokenImportance, *, seed: tuple[int, ...]) -> Tensor:
    """Return [T] bool: floor(ratio * m) of the m tokens of each rollout, or of all rollouts together.

    The ratio is taken as written: 0.29 of 100 is 29, which floats would make 28. A nan counts as inf, and of equal scores the
    earlier token is kept. `sample` draws without replacement, in proportion to the scores, by (seed, rollout, place in it).
    `row_index` [T] int64 numbers the rollouts alike in any micro-batch and on any rank.
    """
    scores = torch.nan_to_num(_wide(scores), nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
    mode = "sample" if selection.score == "random" else selection.mode
    if mode == "sample":
        scores = _sampling_keys(scores, row_index, seed)
    group = row_index if selection.scope == "rollout" else torch.zeros_like(row_index)
    _, group, sizes = group.unique(return_inverse=True, return_counts=True)
    most = torch.tensor([int(Fraction(str(selection.ratio)) * size) for size in sizes.tolist()], device=group.device)
    best = scores.argsort(descending=mode != "bottomk", stable=True)
    kept = torch.zeros_like(row_index, dtype=torch.bool)
    kept[best] = places(group[best])[0] < most[group[best]]
    return kept


def _sampling_keys(scores: Tensor, row_index: Tensor, seed: tuple[int, ...]) -> Tensor:
    """Return [T] log score + Gumbel noise: the largest k are k draws without replacement (Efraimidis and Spirakis 2006)."""
    order = row_index.argsort(stable=True)
    rows, counts = (each.tolist() for each in row_index[order].unique_consecutive(return_counts=True))
    drawn = [np.random.default_rng([*seed, row]).gumbel(size=num) for row, num in zip(rows, counts, strict=True)]
    noise = torch.from_numpy(np.concatenate(drawn or [np.empty(0)])).to(row_index.device)
    return scores.double().clamp(min=0.0).log() + torch.empty_like(noise).scatter_(0, order, noise)


def selection_metrics(kept: Tensor, row_index: Tensor, scores: Mapping[str, Tensor]) -> dict[str, float]:
    """Return metrics over all trained tokens of a batch: quantiles in nats, and shares.

    `rollouts_without` have none of their tokens kept. `q1` ... `q4` are TIP's quadrants, high meaning above the median: Q1
    both high, Q2 entropy only, Q3 divergence only, Q4 neither; `q1_selected` ... are the same of the kept tokens.
    """
    if not len(kept):
        return {}
    num_without = len(row_index.unique()) - len(row_index[kept].unique())
    out = {"selected": float(kept.double().mean()), "rollouts_without": float(num_without)}
    for name, values in scores.items():
        out |= {f"{name}_p{round(100 * q)}": float(quantile(values, q)) for q in QUANTILES}
    if "divergence" in scores and (total := float(scores["divergence"].double().sum())) > 0:
        out["divergence_covered"] = float(scores["divergence"][kept].double().sum()) / total
    if len(scores) == 2:
        is_h, is_d = (scores[name] > quantile(scores[name], 0.5) for name in ("entropy", "divergence"))
        quadrants = {"q1": is_h & is_d, "q2": is_h & ~is_d, "q3": ~is_h & is_d, "q4": ~is_h & ~is_d}
        for name, inside in quadrants.items():
            out[name] = float(inside.double().mean())
            out[f"{name}_selected"] = float(inside[kept].double().sum()) / max(int(kept.sum()), 1)
    return out
