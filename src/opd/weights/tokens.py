"""Scores of tokens by student entropy and divergence, and the choice of the tokens that are trained on.

TIP, https://arxiv.org/abs/2604.14084. Each function takes the tokens over which it normalises and among which it chooses:
all of a global batch, gathered from its ranks.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple, get_args

import torch
from torch import Tensor

from opd.experiment.algorithm import LossType, Mode, Scope, Score, TokenImportance
from opd.losses.divergences import own_function
from opd.weights.counter import uniform


def places(row_index: Tensor) -> tuple[Tensor, Tensor]:
    """[T] place of each token among those of its row, in their order, and [T] number of tokens of its row."""
    order = row_index.argsort(stable=True)
    _, counts = torch.unique_consecutive(row_index[order], return_counts=True)
    starts = counts.cumsum(0) - counts
    place, size = torch.empty_like(row_index), torch.empty_like(row_index)
    place[order] = torch.arange(len(row_index), device=row_index.device) - starts.repeat_interleave(counts)
    size[order] = counts.repeat_interleave(counts)
    return place, size


def _wide(values: Tensor) -> Tensor:
    """Detached float32 (float64 stays): 16 bits hold three digits, too few to rank tokens by."""
    return values.detach() if values.dtype == torch.float64 else values.detach().float()


def quantile(values: Tensor, q: float) -> Tensor:
    """The q-quantile of [T] values, T >= 1, linear between neighbours; unlike torch's it has no limit of T.

    Raises:
        ValueError: q is not between 0 and 1.
    """
    return _counted_quantile(values, torch.ones_like(values, dtype=torch.bool), q)


def _counted_quantile(values: Tensor, counted: Tensor, q: float) -> Tensor:
    """The q-quantile of the counted ones of [T] values as `quantile` has it, inf where none is; the host waits for nothing."""
    if not 0.0 <= q <= 1.0:
        raise ValueError(f"quantile q={q!r}: must lie between 0 and 1")
    ordered = values.masked_fill(~counted, torch.inf).sort().values
    last = (counted.sum() - 1).clamp(min=0)
    place = q * last.double()
    low = place.long()
    ends = ordered[torch.stack([low, torch.minimum(low + 1, last)])]
    return torch.lerp(ends[0], ends[1], (place - low).to(values.dtype))


def normalised(values: Tensor, *, mask: Tensor, clip_q: float | None = None) -> Tensor:
    """[T] values scaled to [0, 1] by the smallest and largest masked one, cut off at the masked ones' `clip_q`-quantile.

    Where all are equal, all are 0. Values that are not finite take no part in the range: nan and inf become inf.
    Entries outside of the mask are 0.
    """
    values = _wide(values)
    if not len(values):
        return values
    finite = torch.isfinite(values)
    counted = mask & finite
    low = values.masked_fill(~counted, torch.inf).min()
    high = (
        values.masked_fill(~counted, -torch.inf).max() if clip_q is None else _counted_quantile(values, counted, clip_q)
    )
    scaled = (values.clamp(max=high) - low) / torch.where(high > low, high - low, torch.inf)
    return scaled.masked_fill(~finite, torch.inf).masked_fill(~mask, 0.0)


class Tokens(NamedTuple):
    """The trained tokens of a batch, gathered from its ranks.

    Args:
        selection: the keys of `opd.importance.tokens`.
        mask: [T] bool, True = trained on. row_index: [T] int64, the response of each token.
        entropy: [T] the student's, and divergence: [T] by `scored_divergence`, for the scores that need them.
    """

    selection: TokenImportance
    mask: Tensor
    row_index: Tensor
    entropy: Tensor | None = None
    divergence: Tensor | None = None


TokenScore = Callable[[Tokens], Tensor]
TOKEN_SCORES: dict[str, TokenScore] = {}


def register_token_score(name: str) -> Callable[[TokenScore], TokenScore]:
    """Return a decorator that registers a function of `Tokens` -> scores [T]; the higher, the rather a token is kept.

    A score costs forwards of student and teacher before the update, unless `TokenImportance` says that it needs none.
    """

    def register(function: TokenScore) -> TokenScore:
        TOKEN_SCORES[name] = function
        return function

    return register


def _read(tokens: Tokens, *names: str) -> list[Tensor]:
    """Return quantities of tokens.

    Raises:
        ValueError: one is not given.
    """
    values = [getattr(tokens, name) for name in names]
    if any(each is None for each in values):
        raise ValueError(f"score={tokens.selection.score!r}: needs {' and '.join(names)} of each token; give them")
    return values


@register_token_score("random")
def _equal(tokens: Tokens) -> Tensor:
    return torch.ones(len(tokens.mask), device=tokens.mask.device)


@register_token_score("position")
def _from_end(tokens: Tokens) -> Tensor:
    """Return the share of its row's tokens that a token is ahead of, itself counted: from the start or, with `first`, the end."""
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
    """Return TIP's score h + d - h d of both quantities scaled to [0, 1]: high where either is.

    Args:
        entropy, divergence: [T] in nats, any float dtype; computed in float32 (float64 where both are).
        mask: [T] bool, True = trained on; the scale is that of these tokens.
        entropy_clip_q, divergence_clip_q: the quantile from which on all count alike, so that one outlier does not press
            the others to 0; None: no such limit. TIP clips the entropy at 0.98 and not the divergence.

    Returns:
        [T] in [0, 1], 0 outside of the mask, inf where a quantity is not finite.
    """
    h = normalised(entropy, mask=mask, clip_q=entropy_clip_q)
    d = normalised(divergence, mask=mask, clip_q=divergence_clip_q)
    return torch.where(torch.isinf(h) | torch.isinf(d), torch.inf, h + d - h * d)


@register_token_score("q3")
def _q3(tokens: Tokens) -> Tensor:
    """Return TIP's score d (1 - h) of over-confident wrong tokens: h scaled as in `soft_or_scores`, d KL(p_T || p_S) as it is."""
    entropy, divergence = _read(tokens, "entropy", "divergence")
    sure = 1.0 - normalised(entropy, mask=tokens.mask, clip_q=tokens.selection.entropy_clip_q)
    return _finite_or_first(_wide(divergence) * sure).masked_fill(~tokens.mask, 0.0)


def scored_divergence(score: Score, loss_type: LossType) -> LossType:
    """Return the divergence that tokens are scored by: for `q3` KL(p_T || p_S), else the loss's, or what it estimates.

    Args:
        loss_type: of the step's stage.
    """
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
    """Return [T] bool: which of T trained tokens a selection keeps; arguments as of `Tokens` and `select_tokens`.

    Raises:
        ValueError: the score needs what is not given, or is no name of a score.
    """
    mask = torch.ones_like(row_index, dtype=torch.bool)
    if selection.score == "none":
        return mask
    name = selection.score
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


def _finite_or_first(values: Tensor) -> Tensor:
    return torch.where(torch.isfinite(values), values, torch.inf)


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
    """Keep floor(ratio * m) of the m trained tokens of each rollout, or of all rollouts together.

    A rollout with fewer than 1 / ratio trained tokens keeps none of them under scope `rollout`: it adds nothing to the
    update. Among equal scores the earlier token is kept.

    Args:
        scores: [T], any float dtype, compared in float32 (float64 stays); nan counts as inf.
        mask: [T] bool, True = trained on; no other token is ever kept.
        row_index: [T] int64, a number of each token's rollout. Sampling depends on it, so a token is sampled alike in any
            micro-batch and on any rank if the number names the rollout there too.
        ratio: share to keep, 0 to 1.
        mode: `topk` the highest scores; `bottomk` the lowest; `sample` without replacement, each draw with probability
            proportional to the score among what is left (scores of 0 and below come last).
        scope: what floor(ratio * m) is taken of; for `batch` equal scores are kept in the order of the tensor.
        seed: of `sample`; each token draws by (seed, rollout, place in the rollout).

    Returns:
        [T] bool, True = trained on.

    Raises:
        ValueError: inputs of different length, an unknown mode or scope, or a ratio outside of [0, 1].
    """
    if not len(scores) == len(mask) == len(row_index):
        raise ValueError(f"scores {len(scores)}, mask {len(mask)}, row_index {len(row_index)}: must have one length T")
    if mode not in get_args(Mode) or scope not in get_args(Scope):
        raise ValueError(f"mode={mode!r}, scope={scope!r}: {', '.join(get_args(Mode))}; {', '.join(get_args(Scope))}")
    scores = comparable(scores)
    if mode == "sample":
        scores = _sampling_keys(scores, row_index, seed)
    candidates = mask.nonzero().squeeze(1)
    group = row_index[candidates] if scope == "rollout" else torch.zeros_like(candidates)
    _, group, sizes = group.unique(return_inverse=True, return_counts=True)
    kept_of_group = torch.tensor([num_kept(ratio, size) for size in sizes.tolist()], device=mask.device)
    longest = int(sizes.max()) if len(sizes) else 0
    kept = torch.zeros_like(mask)
    place = group * longest + places(group)[0]
    kept[candidates] = best_of_groups(
        scores[candidates], place, kept_of_group.long(), longest, descending=mode != "bottomk"
    )
    return kept


def comparable(scores: Tensor) -> Tensor:
    """[T] scores in float32 (float64 stays), nan as inf."""
    return torch.nan_to_num(_wide(scores), nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)


def best_of_groups(scores: Tensor, place: Tensor, num_kept: Tensor, longest: int, *, descending: bool) -> Tensor:
    """[T] bool: the `num_kept` best of each group, of equal ones the earlier; the host waits for nothing.

    Args:
        scores: [T] without nan.
        place: [T] int64, `longest` times the group's number plus the token's place in its group.
        num_kept: [G] int64, how many to keep of each group, at most all.
        longest: at least the tokens of the largest group.
    """
    worst = -torch.inf if descending else torch.inf  # behind each group's last token, so even of equal ones not kept
    groups = scores.new_full((len(num_kept), longest), worst)
    groups.view(-1).scatter_(0, place, scores)
    order = groups.argsort(dim=1, descending=descending, stable=True)
    is_best = torch.arange(longest, device=scores.device) < num_kept.unsqueeze(1)
    return torch.empty_like(order, dtype=torch.bool).scatter_(1, order, is_best).view(-1)[place]


def _sampling_keys(scores: Tensor, row_index: Tensor, seed: int) -> Tensor:
    """Return [T] log score + Gumbel noise by (seed, rollout, place in the rollout).

    Their largest k are k draws without replacement (Efraimidis and Spirakis 2006).
    """
    rows, place = row_index.cpu(), places(row_index)[0].cpu()
    noise = -torch.log(-torch.log(torch.from_numpy(uniform(seed, rows.numpy(), place.numpy()))))
    return scores.double().clamp(min=0.0).log() + noise.to(row_index.device)


def num_kept(ratio: float, num_tokens: int) -> int:
    """floor(ratio * num_tokens) for the ratio as it was written: 0.29 of 100 is 29, which floats would make 28.

    Raises:
        ValueError: the ratio is not between 0 and 1.
    """
    if not 0.0 <= ratio <= 1.0:
        raise ValueError(f"ratio={ratio!r}: must lie between 0 and 1; it is the share of the tokens that is kept")
    return int(Fraction(str(ratio)) * num_tokens)


QUANTILES = (0.5, 0.9, 0.98)


def selection_metrics(
    kept: Tensor, row_index: Tensor, *, entropy: Tensor | None = None, divergence: Tensor | None = None
) -> dict[str, float]:
    """Metrics over all trained tokens of a batch.

    - `selected`: share of the tokens that is kept.
    - `rollouts_without`: rollouts with trained tokens of which none is kept (fewer than 1 / ratio of them).
    - `entropy_p50` ..., `divergence_p50` ...: quantiles in nats, of all tokens.
    - `divergence_covered`: share of the divergence's sum that lies on kept tokens.
    - `q1` ... `q4`: TIP's quadrants as shares of all tokens, high meaning above the median of the batch: Q1 both high,
      Q2 entropy only, Q3 divergence only, Q4 neither. `q1_selected` ...: the same of the kept tokens.

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
