"""Weights of problems by the student's pass rate: what it has mastered and what it cannot yet solve counts for little.

PACED, https://arxiv.org/abs/2603.11178. A pass rate is the share of K answers of a checkpoint that were right.
"""

from typing import Any

import torch
from torch import Tensor


def competence_weights(pass_rate: Any, *, alpha: float = 1.0, beta: float = 1.0, kept: Any | None = None) -> Tensor:
    """p ** alpha (1 - p) ** beta, scaled to a mean of 1 over all P problems of the data set.

    A problem of weight 0 (never or always solved, or not kept) may be left out of the data: the others' weights stay what
    they are, since the mean is over all P. Normalised in a batch, weights would cancel what they are for.

    Args:
        pass_rate: [P] between 0 and 1, any float dtype or array.
        alpha, beta: exponents, 0 or more; 0 and 0 weigh all kept problems alike.
        kept: [P] bool, e.g. of `hard_filter`; the others get weight 0. None: all.

    Returns:
        [P] float64.

    Raises:
        ValueError: a pass rate outside of [0, 1], a negative exponent, or no problem with a weight above 0.
    """
    p = _rates(pass_rate)
    if not (0.0 <= alpha < float("inf") and 0.0 <= beta < float("inf")):
        raise ValueError(f"alpha={alpha!r}, beta={beta!r}: exponents of a pass rate must be 0 or more")
    weights = p**alpha * (1.0 - p) ** beta
    if kept is not None:
        weights = weights * torch.as_tensor(kept, dtype=torch.bool, device=p.device)
    total = weights.sum()
    if not total > 0:
        raise ValueError(
            f"pass_rate: no weight is above 0 among {len(p)} problems, so nothing is left to train on; measure pass rates "
            "with more answers a problem, or take problems that the student solves at times"
        )
    return weights * (len(p) / total)


def hard_filter(pass_rate: Any, *, low: float = 0.2, high: float = 0.8) -> Tensor:
    """[P] bool: low <= p <= high, up to the rounding of a division by K."""
    p = _rates(pass_rate)
    return (p >= low - 1e-6) & (p <= high + 1e-6)


def moment_matched(pass_rate: Any, *, num_samples: int) -> tuple[float, float]:
    """Exponents alpha, beta whose curve has mean and variance of the pass rates strictly between 0 and 1.

    With mean m and (population) variance v of the rates in [1 / K, 1 - 1 / K] and s = m (1 - m) / v - 1, the density of
    Beta(s m, s (1 - m)) is proportional to p ** alpha (1 - p) ** beta with alpha = s m - 1 and beta = s (1 - m) - 1.

    Args:
        num_samples: K, answers behind each pass rate.

    Raises:
        ValueError: fewer than two different rates there, or so wide a spread that an exponent would be negative.
    """
    p = _rates(pass_rate)
    inside = p[hard_filter(p, low=1.0 / num_samples, high=1.0 - 1.0 / num_samples)]
    variance = float(inside.var(correction=0)) if len(inside) else 0.0
    if variance <= 0.0:
        raise ValueError(
            f"pass_rate: {len(inside)} problems lie between 1/{num_samples} and 1 - 1/{num_samples}, all at one rate or none "
            "there: their spread says nothing; use alpha=1, beta=1"
        )
    mean = float(inside.mean())
    s = mean * (1.0 - mean) / variance - 1.0
    alpha, beta = s * mean - 1.0, s * (1.0 - mean) - 1.0
    if alpha < 0.0 or beta < 0.0:
        raise ValueError(
            f"pass_rate: mean {mean:.3g} and variance {variance:.3g} give alpha={alpha:.3g}, beta={beta:.3g}; a negative "
            "exponent would favour what is never or always solved; use alpha=1, beta=1"
        )
    return alpha, beta


def _rates(pass_rate: Any) -> Tensor:
    p = torch.as_tensor(pass_rate).detach().double()
    if not bool(((p >= 0.0) & (p <= 1.0)).all()):
        raise ValueError("pass_rate: every rate must lie between 0 and 1 (a share of answers, not a percentage)")
    return p
