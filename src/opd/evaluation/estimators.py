"""Estimators: unbiased pass@k, exact maj@k, and standard errors clustered by problem."""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import comb
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
    _check_counts(num_correct, num_samples)
    draws = np.arange(num_samples, dtype=np.float64)
    still_wrong = np.clip((num_samples - num_correct - draws) / (num_samples - draws), 0.0, None)
    rates: Floats = np.subtract(1.0, np.cumprod(still_wrong), dtype=np.float64)
    return rates


def majority_at_every_k(votes: Sequence[int], accuracies: Sequence[float], num_samples: int) -> Floats:
    """Return exact maj@k of one problem, float64 `[n]` for k = 1 ... n: the expected accuracy of the majority of k samples.

    The expectation is over all C(n, k) subsets, none of them sampled. Samples without an answer do not vote; a subset
    without any answer counts 0. A tie counts the mean accuracy of the tied answers.

    For each winning number of votes v, a polynomial in x (samples drawn) and y (answers with exactly v votes) is the product
    over the answers of sum_{u<v} C(c, u) x^u + C(c, v) x^v y. A second polynomial holds the sum of the accuracies of the
    tied answers. All other samples only dilute: (1 + x)^rest. All terms are positive, so float64 loses nothing.

    Args:
        votes: how many samples gave each distinct answer.
        accuracies: the accuracy of each of these answers, a mean where equal answers were scored apart.
        num_samples: n; the samples that `votes` leaves over gave no answer.
    """
    if len(votes) != len(accuracies):
        raise ValueError(f"{len(votes)} votes but {len(accuracies)} accuracies: one of each for every answer")
    if any(count < 1 for count in votes):
        raise ValueError(f"votes {list(votes)}: every answer needs at least one sample")
    _check_counts(sum(votes), num_samples)
    expected = np.zeros(num_samples + 1)
    for winning in range(1, max(votes, default=0) + 1):
        expected += _accuracy_with_winner_at(winning, votes, accuracies, num_samples)
    subsets = np.array([float(comb(num_samples, k)) for k in range(num_samples + 1)])
    best: Floats = (expected / subsets)[1:]
    return best


def _accuracy_with_winner_at(
    winning: int, votes: Sequence[int], accuracies: Sequence[float], num_samples: int
) -> Floats:
    """Sum the mean accuracies of all subsets whose best answers have `winning` votes, by subset size `[n+1]`."""
    contenders = [(count, accuracy) for count, accuracy in zip(votes, accuracies, strict=True) if count >= winning]
    rest = num_samples - sum(count for count, _ in contenders)
    shape = (num_samples + 1, len(contenders) + 1)
    weight = np.zeros(shape)  # [samples drawn, answers tied at the top]
    accuracy_sum = np.zeros(shape)
    weight[: rest + 1, 0] = [float(comb(rest, drawn)) for drawn in range(rest + 1)]
    for count, accuracy in contenders:
        below = [float(comb(count, drawn)) for drawn in range(winning)]
        at_top = float(comb(count, winning))
        tied = _shifted(weight, winning) * at_top
        accuracy_sum = _drawn(accuracy_sum, below) + _shifted(accuracy_sum, winning) * at_top + tied * accuracy
        weight = _drawn(weight, below) + tied
    return accuracy_sum[:, 1:] @ (1.0 / np.arange(1, shape[1]))


def _drawn(table: Floats, coefficients: Sequence[float]) -> Floats:
    """Return `table` times sum_u coefficients[u] x^u."""
    product = np.zeros_like(table)
    for drawn, coefficient in enumerate(coefficients):
        product[drawn:] += coefficient * table[: len(table) - drawn]
    return product


def _shifted(table: Floats, drawn: int) -> Floats:
    """Return `table` times x^drawn y."""
    product = np.zeros_like(table)
    product[drawn:, 1:] = table[: len(table) - drawn, :-1]
    return product


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


def paired_difference(before: Mapping[int, float], after: Mapping[int, float]) -> Estimate:
    """Return after - before over the same problems, with the standard error of the differences.

    Raises:
        ValueError: the two do not hold the same problems.
    """
    if before.keys() != after.keys():
        apart = sorted(before.keys() ^ after.keys())
        raise ValueError(f"a paired difference needs the same problems on both sides; {len(apart)} differ: {apart[:5]}")
    return clustered([after[problem] - before[problem] for problem in sorted(before)])


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


def _check_counts(num_part: int, num_samples: int) -> None:
    if num_samples < 1:
        raise ValueError(f"num_samples = {num_samples}: must be at least 1")
    if not 0 <= num_part <= num_samples:
        raise ValueError(f"{num_part} of {num_samples} samples: must lie between 0 and {num_samples}")
