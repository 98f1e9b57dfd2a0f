"""Estimators: unbiased pass@k, maj@n, and standard errors clustered by problem."""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LEVEL = 0.05


class Estimate(NamedTuple):
    """A mean over problems and its standard error."""

    value: float
    standard_error: float
    """NaN for fewer than two problems."""

    def interval(self, freedom: int) -> tuple[float, float]:
        """Return both ends of the 95 % interval by Student's t; NaN without degrees of freedom or an error."""
        half = critical_t(freedom) * self.standard_error if freedom > 0 else math.nan
        return self.value - half, self.value + half


def pass_at_every_k(num_correct: int, num_samples: int) -> Floats:
    """Return unbiased pass@k of one problem, float64 `[n]` for k = 1 ... n: the chance that k of n samples hold a right one.

    1 - C(n-c, k) / C(n, k) (Chen et al., arXiv:2107.03374), as a product over the draws of (n-c-i) / (n-i), the chance of
    another wrong sample. Every factor is in [0, 1], so nothing overflows or cancels.
    """
    if not 0 <= num_correct <= num_samples or num_samples < 1:
        raise ValueError(f"{num_correct} of {num_samples} samples: must be between 0 and a positive number")
    draws = np.arange(num_samples, dtype=np.float64)
    still_wrong = np.clip((num_samples - num_correct - draws) / (num_samples - draws), 0.0, None)
    rates: Floats = np.subtract(1.0, np.cumprod(still_wrong), dtype=np.float64)
    return rates


def majority(votes: Mapping[str, Sequence[float]]) -> float:
    """Return the accuracy of the answer with most votes; a tie counts the mean of the tied, and no vote at all 0.

    Args:
        votes: the accuracies of the samples that gave each answer; equal answers may be scored apart.
    """
    most = max(map(len, votes.values()), default=0)
    tied = [sum(accuracies) / most for accuracies in votes.values() if len(accuracies) == most]
    return sum(tied) / len(tied) if tied else 0.0


def clustered(per_problem: Sequence[float] | Floats) -> Estimate:
    """Return the mean over problems, with the standard error that takes each problem's samples as one cluster.

    Every problem has equally many samples, so this is the mean of samples. The cluster-robust error is
    sd(problem means) / sqrt(problems), with n-1 in the deviation.
    """
    values = np.asarray(per_problem, dtype=np.float64)
    if values.size == 0:
        raise ValueError("an estimate needs at least one problem")
    error = float(values.std(ddof=1) / np.sqrt(values.size)) if values.size > 1 else math.nan
    return Estimate(float(values.mean()), error)


def chance_beyond(t: float, freedom: int) -> float:
    """Return the chance that |T| exceeds `t >= 0` for Student's T (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine, total, term = math.cos(angle), 0.0, 1.0
    for power in range(1 + freedom % 2, freedom, 2):
        total += term
        term *= cosine**2 * power / (power + 1)
    inside = math.sin(angle) * total * (cosine if freedom % 2 else 1)
    return 1 - (2 / math.pi * (angle + inside) if freedom % 2 else inside)


@lru_cache(maxsize=256)
def critical_t(freedom: int) -> float:
    """Return the t that |T| exceeds with chance `LEVEL`, by bisection."""
    low, high = 0.0, 1.0
    while chance_beyond(high, freedom) > LEVEL:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if chance_beyond(middle, freedom) > LEVEL else (low, middle)
    return high
