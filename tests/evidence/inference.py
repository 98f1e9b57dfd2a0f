"""Paired differences over seeds: mean, standard error, Student's t interval and test, and Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from opd.evaluation.estimators import clustered

LEVEL = 0.95


class Difference(NamedTuple):
    """The mean of differences, one a seed; error, interval and p are nan for a single one."""

    num: int
    mean: float
    standard_error: float
    low: float
    high: float
    p: float
    """Two-sided, of the hypothesis that the mean is 0."""


def paired(differences: Sequence[float]) -> Difference:
    """Student's t on the differences of the same seeds."""
    mean, error = clustered(differences)
    num = len(differences)
    if num < 2:
        return Difference(num, mean, *(math.nan,) * 4)
    half = t_quantile(0.5 + LEVEL / 2, num - 1) * error
    p = 2.0 * t_cdf(-abs(mean) / error, num - 1) if error > 0 else float(mean == 0)
    return Difference(num, mean, error, mean - half, mean + half, p)


def holm(ps: Sequence[float]) -> list[float]:
    """Adjusted p values (Holm 1979): below alpha together with a chance of a false one among all of at most alpha."""
    out, largest = [0.0] * len(ps), 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[index]))
        out[index] = largest
    return out


def t_cdf(t: float, freedom: int) -> float:
    """Student's distribution function for whole degrees of freedom: the finite series in the angle atan(t / sqrt(freedom)).

    Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    angle = math.atan2(t, math.sqrt(freedom))
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for k in range(1 + odd, freedom + 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * k / (k + 1)
    between = math.sin(angle) * total
    if odd:
        between = 2.0 / math.pi * (angle + between)
    return 0.5 + 0.5 * between


def t_quantile(q: float, freedom: int) -> float:
    """The t >= 0 with `t_cdf(t) == q`, q in [0.5, 1), by bisection."""
    low, high = 0.0, 1.0
    while t_cdf(high, freedom) < q:
        high *= 2.0
    while (middle := (low + high) / 2.0) not in (low, high):
        low, high = (middle, high) if t_cdf(middle, freedom) < q else (low, middle)
    return high
