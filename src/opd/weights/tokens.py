"""Scores of tokens by student entropy and divergence, and the choice of trained tokens (TIP, https://arxiv.org/abs/2604.14084).

Each function takes all tokens of a global batch, gathered from its ranks.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple, get_args

import torch
from torch import Tensor

from opd.experiment.algorithm import LossType, Mode, Scope, Score, TokenImportance
from opd.losses.divergences import own_function
from opd.weights.counter import uniform

QUANTILES = (0.5, 0.9, 0.98)


def places(row_index: Tensor) -> tuple[Tensor, Tensor]:
    """Return [T] place of each token among those of its row, and [T] number of tokens of its row."""
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
    if not 0.0 <= q <= 1.0:
        raise ValueError(f"quantile q={q!r}: must lie between 0 and 1")
    ordered, place = values.sort().values, q * (len(values) - 1)
    low = int(place)
    return torch.lerp(ordered[low], ordered[min(low + 1, len(values) - 1)], place - low)


def normalised(values: Tensor, *, mask: Tensor, clip_q: float | None = None) -> Tensor:
    """Return [T] values scaled to [0, 1] by the smallest masked value and the largest, or the masked ones' `clip_q`-quantile.

    Where all are equal, all are 0. Values that are not finite take no part in the range and become inf. Others than the masked are 0.
    """
    values = _wide(values)
    finite = torch.isfinite(values)
    counted = values[mask & finite]
    if not len(counted):
        counted = values.new_zeros(1)
    low, high = counted.min(), counted.max() if clip_q is None else quantile(counted, clip_q)
    scaled = (values.clamp(max=high) - low) / torch.where(high > low, high - low, torch.inf)
    return scaled.masked_fill(~finite, torch.inf).masked_fill(~mask, 0.0)


class Tokens(NamedTuple):
    """The trained tokens of a batch.

    Args:
        selection: the keys of `opd.importance.tokens`.
        mask: [T] bool, True = trained on. row_index: [T] int64, the response of each token.
        entropy, divergence: [T], the student's and that of `scored_divergence`, for the scores that need them.
    """

    selection: TokenImportance
    mask: Tensor
    row_index: Tensor
    entropy: Tensor | None = None
    divergence: Tensor | None = None


TokenScore = Callable[[Tokens], Tensor]
TOKEN_SCORES: dict[str, TokenScore] = {}


def register_token_score(name: str) -> Callable[[TokenScore], TokenScore]:
    """Return a decorator that registers a function of `Tokens` -> scores [T]; the highest scores are kept.

    A score costs forwards of student and teacher before the update, unless `TokenImportance` says that it needs none.
    """

    def register(function: TokenScore) -> TokenScore:
        TOKEN_SCORES[name] = function
        return function

    return register


def _read(tokens: Tokens, *names: str) -> list[Tensor]:
    values = [getattr(tokens, name) for name in names]
    if any(each is None for each in values):
        raise ValueError(f"score={tokens.selection.score!r}: needs {' and '.join(names)} of each token; give them")
    return values


def _finite_or_first(values: Tensor) -> Tensor:
    return torch.where(torch.isfinite(values), values, torch.inf)


@register_token_score("random")
def _equal(tokens: Tokens) -> Tensor:
    return torch.ones(len(tokens.mask), device=tokens.mask.device)


@register_token_score("position")
def _from_end(tokens: Tokens) -> Tensor:
    """Return the share of its row's tokens up to a token, from the start or, with `first`, from the end."""
    place, size = places(tokens.row_index)
    return (place + 1 if tokens.selection.position == "last" else size - place).double() / size


@register_token_score("entropy")
def _entropy(tokens: Tokens) -> Tensor:
    return _finite_or_first(_wide(*_read(tokens, "entropy")))


@register_token_score("divergence")
def _divergence(tokens: Tokens) -> Tensor:
    return _finite_or_first(_wide(*_read(tokens, "divergence")))


@register_token_score("soft_or")
def _soft_or(tokens: Tokens) -> Tensor:
    clips = {key: getattr(tokens.selection, key) for key in ("entropy_clip_q", "divergence_clip_q")}
    return soft_or_scores(*_read(tokens, "entropy", "divergence"), mask=tokens.mask, **clips)


def soft_or_scores(
    entropy: Tensor,
    divergence: Tensor,
    *,
    mask: Tensor,
    entropy_clip_q: float | None = 0.98,
    divergence_clip_q: float | None = None,
) -> Tensor:
    """Return TIP's score h + d - h d [T] of both quantities scaled to [0, 1] over the mask; inf where a quantity is not finite.

    From the quantile `*_clip_q` on all count alike, so that an outlier does not press the others to 0. None means no limit.
    """
    h = normalised(entropy, mask=mask, clip_q=entropy_clip_q)
    d = normalised(divergence, mask=mask, clip_q=divergence_clip_q)
    return torch.where(torch.isinf(h) | torch.isinf(d), torch.inf, h + d - h * d)


@register_token_score("q3")
def _q3(tokens: Tokens) -> Tensor:
    """Return TIP's score d (1 - h) of over-confident wrong tokens; d is KL(p_T || p_S) in nats."""
    entropy, divergence = _read(tokens, "entropy", "divergence")
    sure = 1.0 - normalised(entropy, mask=tokens.mask, clip_q=tokens.selection.entropy_clip_q)
    return _finite_or_first(_wide(divergence) * sure).masked_fill(~tokens.mask, 0.0)


def scored_divergence(score: Score, loss_type: LossType) -> LossType:
    """Return the divergence that tokens are scored by: for `q3` KL(p_T || p_S), else the step's loss, or what it estimates."""
    if score == "q3":
        return "forward_kl"
    return "reverse_kl" if loss_type in ("sampled_reverse_kl", "topk_reverse_kl") else loss_type


def choose_tokens(
    selection: TokenImportance,
    row_index: Tensor,
    *,
    seed: int,
    entropy: Tensor | None = None,
    divergence: Tensor | None = None,
) -> Tensor:
    """Return [T] bool: which of T trained tokens a selection keeps; arguments as of `Tokens` and `select_tokens`."""
    mask = torch.ones_like(row_index, dtype=torch.bool)
    if (name := selection.score) == "none":
        return mask
    function = TOKEN_SCORES.get(name) or own_function("opd.importance.tokens.score", name, TOKEN_SCORES)
    return select_tokens(
        function(Tokens(selection, mask, row_index, entropy, divergence)),
        mask=mask,
        row_index=row_index,
        ratio=selection.ratio,
        mode="sample" if name == "random" else selection.mode,
        scope=selection.scope,
        seed=seed,
    )


def select_tokens(
    scores: Tensor,
    *,
    mask: Tensor,
    row_index: Tensor,
    ratio: float,
    mode: Mode = "topk",
    scope: Scope = "rollout",
    seed: int = 0,
) -> Tensor:
    """Return [T] bool: floor(ratio * m) of the m trained tokens of each rollout, or of all rollouts together.

    Of equal scores the earlier token is kept.

    Args:
        scores: [T], compared in float32 (float64 stays); nan counts as inf.
        mask: [T] bool, True = trained on; no other token is ever kept.
        row_index: [T] int64, a number of each token's rollout that is the same in any micro-batch and on any rank.
        ratio: share to keep, 0 to 1.
        mode: `topk`, `bottomk`, or `sample` without replacement, with probabilities proportional to the scores.
        scope: `rollout` or `batch`. seed: of `sample`; each token draws by (seed, rollout, place in the rollout).

    Raises:
        ValueError: inputs of different length, an unknown mode or scope, or a ratio outside of [0, 1].
    """
    if not len(scores) == len(mask) == len(row_index):
        raise ValueError(f"scores {len(scores)}, mask {len(mask)}, row_index {len(row_index)}: must have one length T")
    if mode not in get_args(Mode) or scope not in get_args(Scope):
        raise ValueError(f"mode={mode!r}, scope={scope!r}: {', '.join(get_args(Mode))}; {', '.join(get_args(Scope))}")
    scores = torch.nan_to_num(_wide(scores), nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
    if mode == "sample":
        scores = _sampling_keys(scores, row_index, seed)
    candidates = mask.nonzero().squeeze(1)
    group = row_index[candidates] if scope == "rollout" else torch.zeros_like(candidates)
    _, group, sizes = group.unique(return_inverse=True, return_counts=True)
    most = torch.tensor([_num_kept(ratio, size) for size in sizes.tolist()], dtype=torch.int64, device=mask.device)
    best = scores[candidates].argsort(descending=mode != "bottomk", stable=True)
    kept = torch.zeros_like(mask)
    kept[candidates[best]] = places(group[best])[0] < most[group[best]]
    return kept


def _sampling_keys(scores: Tensor, row_index: Tensor, seed: int) -> Tensor:
    """Return [T] log score + Gumbel noise: the largest k are k draws without replacement (Efraimidis and Spirakis 2006)."""
    rows, place = row_index.cpu(), places(row_index)[0].cpu()
    noise = -torch.log(-torch.log(torch.from_numpy(uniform(seed, rows.numpy(), place.numpy()))))
    return scores.double().clamp(min=0.0).log() + noise.to(row_index.device)


def _num_kept(ratio: float, num_tokens: int) -> int:
    """Return floor(ratio * num_tokens) for the ratio as written: 0.29 of 100 is 29, which floats would make 28."""
    if not 0.0 <= ratio <= 1.0:
        raise ValueError(f"ratio={ratio!r}: must lie between 0 and 1; it is the share of the tokens that is kept")
    return int(Fraction(str(ratio)) * num_tokens)


def selection_metrics(
    kept: Tensor, row_index: Tensor, *, entropy: Tensor | None = None, divergence: Tensor | None = None
) -> dict[str, float]:
    """Return metrics over all trained tokens of a batch: quantiles in nats, and shares.

    `rollouts_without` have none of their tokens kept. `q1` ... `q4` are TIP's quadrants, high meaning above the median: Q1
    both high, Q2 entropy only, Q3 divergence only, Q4 neither; `q1_selected` ... are the same of the kept tokens.

    Args:
        kept: [T] bool, one entry a trained token. row_index: [T] int64.
        entropy, divergence: [T] where they were scored.
    """
    if not len(kept):
        return {}
    num_rollouts = len(row_index.unique())
    out = {
        "selected": float(kept.double().mean()),
        "rollouts_without": float(num_rollouts - len(row_index[kept].unique())),
    }
    for name, values in (("entropy", entropy), ("divergence", divergence)):
        if values is not None:
            out |= {f"{name}_p{round(100 * q)}": float(quantile(values, q)) for q in QUANTILES}
    if divergence is not None and (total := float(divergence.double().sum())) > 0:
        out["divergence_covered"] = float(divergence[kept].double().sum()) / total
    if entropy is not None and divergence is not None:
        is_h, is_d = (values > quantile(values, 0.5) for values in (entropy, divergence))
        quadrants = {"q1": is_h & is_d, "q2": is_h & ~is_d, "q3": ~is_h & is_d, "q4": ~is_h & ~is_d}
        for name, inside in quadrants.items():
            out[name] = float(inside.double().mean())
            out[f"{name}_selected"] = float(inside[kept].double().sum()) / max(int(kept.sum()), 1)
    return out
