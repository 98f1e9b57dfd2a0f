"""Weights of problems by pass rate, against cases computed by hand."""

from __future__ import annotations

import pytest
import torch
from torch import tensor

from opd.experiment.algorithm import ProblemImportance
from opd.weights import competence_weights, hard_filter, moment_matched, weights_of_problems

RATES = [0.0, 0.25, 0.5, 1.0]


def test_weights_are_p_times_1_minus_p_with_a_mean_of_1_over_the_data_set():
    # 0, 3/16, 4/16, 0: their mean is 7/64.
    torch.testing.assert_close(competence_weights(RATES), tensor([0, 12 / 7, 16 / 7, 0], dtype=torch.float64))


def test_exponents_move_the_weight_towards_harder_or_easier_problems():
    # p (1 - p) ** 2: 9/64 and 8/64; mean 17/256.
    weights = competence_weights(RATES, alpha=1, beta=2)
    torch.testing.assert_close(weights, tensor([0, 36 / 17, 32 / 17, 0], dtype=torch.float64))


def test_a_hard_filter_with_equal_weights_keeps_the_mean():
    rates = [0.0, 0.125, 0.2, 0.5, 0.8, 0.875, 1.0]
    kept = hard_filter(rates)
    assert kept.tolist() == [False, False, True, True, True, False, False]
    weights = competence_weights(rates, alpha=0, beta=0, kept=kept)
    torch.testing.assert_close(weights, kept.double() * (7 / 3))
    assert float(weights.mean()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("rates", "options", "words"),
    [
        ([0.0, 1.0], {}, "no weight is above 0 among 2 problems"),
        ([0.5, 0.5], {"kept": [False, False]}, "no weight is above 0"),
        ([0.5, 50.0], {}, "not a percentage"),
        ([0.5, float("nan")], {}, "between 0 and 1"),
        ([0.5], {"alpha": -1.0}, "alpha=-1.0"),
    ],
)
def test_weights_that_mean_nothing_are_refused(rates, options, words):
    with pytest.raises(ValueError, match=words):
        competence_weights(rates, **options)


def test_moment_matching_gives_the_exponents_of_the_matching_beta_density():
    # 0 and 1 do not count. Mean 1/2, variance 1/32: s = 8 - 1 = 7, so both exponents are 2.5.
    rates = [0.0, 1.0, 0.25, 0.75, 0.5, 0.5]
    assert moment_matched(rates, num_samples=4) == pytest.approx((2.5, 2.5))


@pytest.mark.parametrize(
    ("rates", "words"), [([0.0, 1.0, 0.5], "1 problems lie"), ([0.01, 0.99, 0.01, 0.99], "negative exponent")]
)
def test_a_spread_that_no_weight_follows_from_is_refused(rates, words):
    with pytest.raises(ValueError, match=words):
        moment_matched(rates, num_samples=100)


def hardest_half(rates, problems, num_samples):
    """Weight of a user's own."""
    return (rates <= rates.median()).double()


def test_a_weight_of_ones_own_is_a_function_named_in_the_experiment():
    problems = ProblemImportance.model_construct(weights=f"{__name__}:hardest_half")
    assert weights_of_problems(RATES, problems, num_samples=4).tolist() == [2.0, 2.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="must be one of competence"):
        weights_of_problems(RATES, ProblemImportance.model_construct(weights="nonsense"), num_samples=4)
