"""Scores of tokens by student entropy and divergence, and the choice of the tokens that are trained on.

TIP, https://arxiv.org/abs/2604.14084. Each function takes the tokens over which it normalises and among which it chooses:
all of a global batch, gathered from its ranks, or those of one micro-batch.
"""

from fractions import Fraction

import torch
from torch import Tensor

from opd.config.algorithm import LossType, Mode, Scope, Score, TokenImportance
from opd.importance.counter import uniform


def _wide(values: Tensor) -> Tensor:
    """Detached float32 (float64 stays): 16 bits hold three digits, too few to rank tokens by."""
    return values.detach() if values.dtype == torch.float64 else values.detach().float()


def quantile(values: Tensor, q: float) -> Tensor:
    """The q-quantile of [T] values, T >= 1, linear between neighbours; unlike torch's it has no limit of T.

    Raises:
        ValueError: q is not between 0 and 1.
    """
    if not 0.0 <= q <= 1.0:
        raise ValueError(f"quantile q={q!r}: must lie between 0 and 1")
    ordered = values.sort().values
    place = q * (len(values) - 1)
    low = int(place)
    return torch.lerp(ordered[low], ordered[min(low + 1, len(values) - 1)], place - low)


def normalised(values: Tensor, *, mask: Tensor, clip_q: float | None = None) -> Tensor:
    """[T] values scaled to [0, 1] by the smallest and largest masked one, cut off at the masked ones' `clip_q`-quantile.

    Where all are equal, all are 0. Values that are not finite take no part in the range: nan and inf become inf.
    Entries outside of the mask are 0.
    """
    values = _wide(values)
    finite = torch.isfinite(values)
    counted = values[mask & finite]
    if not len(counted):
        return torch.zeros_like(values).masked_fill(mask & ~finite, torch.inf)
    low, high = counted.min(), counted.max() if clip_q is None else quantile(counted, clip_q)
    scaled = (values.clamp(max=high) - low) / torch.where(high > low, high - low, torch.inf)
    return scaled.masked_fill(~finite, torch.inf).masked_fill(~mask, 0.0)


def soft_or_scores(
    entropy: Tensor,
    divergence: Tensor,
    *,
    mask: Tensor,
    entropy_clip_q: float | None = 0.98,
    divergence_clip_q: float | None = None,
) -> Tensor:
    """TIP's score h + d - h d of both quantities scaled to [0, 1]: high where either is.

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


def q3_scores(entropy: Tensor, divergence: Tensor, *, mask: Tensor, entropy_clip_q: float | None = 0.98) -> Tensor:
    """TIP's score d (1 - h) of over-confident wrong tokens: h scaled as in `soft_or_scores`, d KL(p_T || p_S) as it is.

    Args and Returns: as of `soft_or_scores`, not bounded above.
    """
    sure = 1.0 - normalised(entropy, mask=mask, clip_q=entropy_clip_q)
    return _finite_or_first(_wide(divergence) * sure).masked_fill(~mask, 0.0)


def places(row_index: Tensor) -> tuple[Tensor, Tensor]:
    """[T] place of each token among those of its row, in their order, and [T] number of tokens of its row."""
    order = row_index.argsort(stable=True)
    _, counts = torch.unique_consecutive(row_index[order], return_counts=True)
    starts = counts.cumsum(0) - counts
    place, size = torch.empty_like(row_index), torch.empty_like(row_index)
    place[order] = torch.arange(len(row_index), device=row_index.device) - starts.repeat_interleave(counts)
    size[order] = counts.repeat_interleave(counts)
    return place, size


def scored_divergence(score: Score, loss_type: LossType) -> LossType:
    """The divergence that tokens are scored by: TIP's Q3 ranks by KL(p_T || p_S) whatever the loss is, the others by the loss's.

    Args:
        loss_type: of the step's stage.
    """
    return "forward_kl" if score == "q3" else loss_type


def token_scores(
    selection: TokenImportance,
    *,
    mask: Tensor,
    row_index: Tensor,
    entropy: Tensor | None = None,
    divergence: Tensor | None = None,
) -> Tensor:
    """[T] scores of a selection: the higher, the rather a token is kept.

    Args:
        entropy: [T] the student's, for the scores that need it (`entropy`, `entropy_length`, `soft_or`, `q3`).
        divergence: [T], for the scores that need it, by `scored_divergence`.

    Raises:
        ValueError: the score needs what is not given.
    """
    place, size = places(row_index)
    from_end = (place + 1 if selection.position == "last" else size - place).double() / size
    match selection.score:
        case "none" | "random":
            return torch.ones(len(mask), device=mask.device)
        case "position":
            return from_end
        case "entropy" if entropy is not None:
            return _finite_or_first(_wide(entropy))
        case "entropy_length" if entropy is not None:
            entropy = _wide(entropy)
            return from_end + (entropy >= quantile(entropy[mask], 0.5) if bool(mask.any()) else mask).double()
        case "divergence" if divergence is not None:
            return _finite_or_first(_wide(divergence))
        case "soft_or" if entropy is not None and divergence is not None:
            clips = {"entropy_clip_q": selection.entropy_clip_q, "divergence_clip_q": selection.divergence_clip_q}
            return soft_or_scores(entropy, divergence, mask=mask, **clips)
        case "q3" if entropy is not None and divergence is not None:
            return q3_scores(entropy, divergence, mask=mask, entropy_clip_q=selection.entropy_clip_q)
    raise ValueError(f"score={selection.score!r}: needs the student's entropy, the divergence, or both; give them")


def choose_tokens(
    selection: TokenImportance,
    row_index: Tensor,
    *,
    seed: int,
    entropy: Tensor | None = None,
    divergence: Tensor | None = None,
) -> Tensor:
    """[T] bool: which of T trained tokens a selection keeps; arguments as of `token_scores` and `select_tokens`."""
    mask = torch.ones_like(row_index, dtype=torch.bool)
    if selection.score == "none":
        return mask
    scores = token_scores(selection, mask=mask, row_index=row_index, entropy=entropy, divergence=divergence)
    return select_tokens(
        scores,
        mask=mask,
        row_index=row_index,
        ratio=selection.ratio,
        mode="sample" if selection.score == "random" else selection.mode,
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
    if mode not in ("topk", "bottomk", "sample") or scope not in ("rollout", "batch"):
        raise ValueError(f"mode={mode!r}, scope={scope!r}: topk, bottomk or sample; rollout or batch")
    scores = torch.nan_to_num(_wide(scores), nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
    if mode == "sample":
        scores = _sampling_keys(scores, row_index, seed)
    candidates = mask.nonzero().squeeze(1)
    group = row_index[candidates] if scope == "rollout" else torch.zeros_like(candidates)
    by_score = scores[candidates].argsort(descending=mode != "bottomk", stable=True)
    order = by_score[group[by_score].argsort(stable=True)]  # group after group, the best of each first
    _, sizes = torch.unique_consecutive(group[order], return_counts=True)
    kept_of_group = torch.tensor([num_kept(ratio, size) for size in sizes.tolist()], device=mask.device)
    place, _ = places(group[order])
    kept = torch.zeros_like(mask)
    kept[candidates[order]] = place < kept_of_group.repeat_interleave(sizes)
    return kept


def _sampling_keys(scores: Tensor, row_index: Tensor, seed: int) -> Tensor:
    """[T] log score + Gumbel noise: their largest k are k draws without replacement (Efraimidis and Spirakis 2006)."""
    rows, place = row_index.cpu(), places(row_index)[0].cpu()
    noise = -torch.log(-torch.log(torch.from_numpy(uniform(seed, rows.numpy(), place.numpy()))))
    return scores.double().clamp(min=0.0).log() + noise.to(scores.device)


def num_kept(ratio: float, num_tokens: int) -> int:
    """floor(ratio * num_tokens) for the ratio as it was written: 0.29 of 100 is 29, which floats would make 28.

    Raises:
        ValueError: the ratio is not between 0 and 1.
    """
    if not 0.0 <= ratio <= 1.0:
        raise ValueError(f"ratio={ratio!r}: must lie between 0 and 1; it is the share of the tokens that is kept")
    return int(Fraction(str(ratio)) * num_tokens)
