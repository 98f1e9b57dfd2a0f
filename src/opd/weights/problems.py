"""Weights of problems by the student's pass rate: what it has mastered and what it cannot yet solve counts for little.

PACED, https://arxiv.org/abs/2603.11178. A pass rate is the share of K answers of a checkpoint that were right.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from opd.experiment.algorithm import ProblemImportance
from opd.losses.divergences import own_function

ProblemWeight = Callable[[Tensor, ProblemImportance, int], Tensor]
"""(pass rates [P] float64, the section's keys, fewest answers of a rate) -> weights [P], 0 or more, of any mean."""
PROBLEM_WEIGHTS: dict[str, ProblemWeight] = {}


def register_problem_weight(name: str) -> Callable[[ProblemWeight], ProblemWeight]:
    """Return a decorator that registers a `ProblemWeight`; the caller scales its weights to a mean of 1."""

    def register(function: ProblemWeight) -> ProblemWeight:
        PROBLEM_WEIGHTS[name] = function
        return function

    return register


def weights_of_problems(pass_rate: Any, problems: ProblemImportance, *, num_samples: int) -> Tensor:
    """Return [P] float64 weights with a mean of 1 over all P problems, by the registered or own function of the section."""
    name, p = problems.weights, torch.as_tensor(pass_rate).detach().double()
    if not bool(((p >= 0.0) & (p <= 1.0)).all()):
        raise ValueError("pass_rate: every rate must be between 0 and 1 (a share of answers, not a percentage)")
    weights = torch.as_tensor(problem_weight(name)(p, problems, num_samples)).double()
    if weights.shape != p.shape or not bool(((weights >= 0.0) & weights.isfinite()).all()):
        raise ValueError(f"weights of {len(p)} problems: must be as many finite numbers, 0 or more")
    if not weights.sum() > 0:
        raise ValueError(
            f"pass_rate: no weight is above 0 among {len(p)} problems, so nothing is left to train on. Measure pass "
            "rates with more answers a problem, or take problems that the student solves at times"
        )
    return weights * (len(p) / weights.sum())


def problem_weight(name: str) -> ProblemWeight:
    """Return a registered weight, or the function that `package.module:name` names."""
    return PROBLEM_WEIGHTS.get(name) or own_function("opd.importance.problems.weights", name, PROBLEM_WEIGHTS)


@register_problem_weight("competence")
def competence(p: Tensor, problems: ProblemImportance, num_samples: int) -> Tensor:
    """Return p ** alpha (1 - p) ** beta."""
    return p**problems.alpha * (1.0 - p) ** problems.beta


@register_problem_weight("hard_filter")
def hard_filter(p: Tensor, problems: ProblemImportance, num_samples: int) -> Tensor:
    """Return 1 for 0.2 <= p <= 0.8, else 0."""
    return _between(p, 0.2, 0.8).double()


@register_problem_weight("moment_matched")
def moment_matched(p: Tensor, problems: ProblemImportance, num_samples: int) -> Tensor:
    """Return p ** alpha (1 - p) ** beta that has mean and variance of the rates in [1 / K, 1 - 1 / K], K answers a problem.

    With mean m, variance v and s = m (1 - m) / v - 1, alpha = s m - 1 and beta = s (1 - m) - 1.
    """
    inside = p[_between(p, 1.0 / num_samples, 1.0 - 1.0 / num_samples)]
    variance = float(inside.var(correction=0)) if len(inside) else 0.0
    if variance <= 0.0:
        raise ValueError(
            f"pass_rate: {len(inside)} problems are between 1/{num_samples} and 1 - 1/{num_samples}, all at one rate or none "
            "there: their spread says nothing; use weights: competence"
        )
    mean = float(inside.mean())
    s = mean * (1.0 - mean) / variance - 1.0
    alpha, beta = s * mean - 1.0, s * (1.0 - mean) - 1.0
    if alpha < 0.0 or beta < 0.0:
        raise ValueError(
            f"pass_rate: mean {mean:.3g} and variance {variance:.3g} give alpha={alpha:.3g}, beta={beta:.3g}; a negative "
            "exponent would favour what is never or always solved; use weights: competence"
        )
    return p**alpha * (1.0 - p) ** beta


def _between(p: Tensor, low: float, high: float) -> Tensor:
    """Return [P] bool: low <= p <= high, up to the rounding of a division by K."""
    return (p >= low - 1e-6) & (p <= high + 1e-6)
