"""Paired differences over seeds: mean, standard error, Student's t interval and test, and Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from opd.evaluation.estimators import chance_beyond, clustered

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
    half = t_beyond(1.0 - LEVEL, num - 1) * error
    p = chance_beyond(abs(mean) / error, num - 1) if error > 0 else float(mean == 0)
    return Difference(num, mean, error, mean - half, mean + half, p)


def holm(ps: Sequence[float]) -> list[float]:
    """Adjusted p values (Holm 1979): below alpha together with a chance of a false one among all of at most alpha."""
    out, largest = [0.0] * len(ps), 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[index]))
        out[index] = largest
    return out


def t_beyond(chance: float, freedom: int) -> float:
    """The t >= 0 that |T| exceeds with this chance, by bisection."""
    low, high = 0.0, 1.0
    while chance_beyond(high, freedom) > chance:
        high *= 2.0
    while (middle := (low + high) / 2.0) not in (low, high):
        low, high = (middle, high) if chance_beyond(middle, freedom) > chance else (low, middle)
    return high
