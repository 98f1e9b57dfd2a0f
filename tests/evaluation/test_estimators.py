"""pass@k, maj@n and standard errors: hand-computed cases, and brute force over every subset."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opd.evaluation.estimators import (
    clustered,
    majority,
    paired_difference,
    pass_at_every_k,
)

ANSWERS = st.lists(st.sampled_from(["right", "also right", "wrong", "wronger", ""]), min_size=1, max_size=8)
"""One problem's samples; an empty string is a sample without an answer."""
RIGHT = {"right", "also right"}


def brute_force_pass(answers: list[str], k: int) -> Fraction:
    """The share of k-subsets that hold a right answer."""
    subsets = list(itertools.combinations(answers, k))
    return Fraction(sum(any(answer in RIGHT for answer in subset) for subset in subsets), len(subsets))


@given(ANSWERS)
def test_pass_at_k_equals_the_enumeration_of_all_subsets(answers):
    num_correct = sum(answer in RIGHT for answer in answers)
    for k, value in enumerate(pass_at_every_k(num_correct, len(answers)), start=1):
        assert value == pytest.approx(float(brute_force_pass(answers, k)), abs=1e-14)


@pytest.mark.parametrize(
    ("votes", "accuracy"),
    [
        ({}, 0.0),
        ({"a": [1.0, 1.0], "b": [0.0]}, 1.0),
        ({"a": [0.0], "b": [1.0]}, 0.5),
        ({"a": [1.0, 0.0], "b": [0.0]}, 0.5),  # equal answers that were scored apart
    ],
)
def test_the_answer_with_most_votes_counts_and_a_tie_is_shared(votes, accuracy):
    assert majority(votes) == accuracy


# The general cluster-robust (CR1) form over single samples: sqrt(P/(P-1) * sum_p (sum_i e_pi)^2) / N.
@given(st.lists(st.integers(0, 6), min_size=2, max_size=12))
def test_the_standard_error_equals_the_cluster_robust_one_over_samples(num_correct):
    num_samples = 6
    samples = np.array([[1.0] * correct + [0.0] * (num_samples - correct) for correct in num_correct])
    residuals = samples - samples.mean()
    num_problems = len(num_correct)
    variance = num_problems / (num_problems - 1) * (residuals.sum(axis=1) ** 2).sum() / samples.size**2
    assert clustered(samples.mean(axis=1)).standard_error == pytest.approx(math.sqrt(variance))


def test_one_problem_has_no_standard_error():
    estimate = clustered([0.25])
    assert estimate.value == 0.25
    assert math.isnan(estimate.standard_error)


# By hand: differences 1/2, 0, 1/2: mean 1/3, sd sqrt(1/12), error sqrt(1/12)/sqrt(3) = 1/6; unpaired it would be larger.
def test_a_paired_difference_by_hand():
    before, after = {1: 0.0, 2: 0.5, 3: 0.25}, {3: 0.75, 2: 0.5, 1: 0.5}
    assert paired_difference(before, after) == pytest.approx((1 / 3, 1 / 6))


def test_a_paired_difference_needs_the_same_problems():
    with pytest.raises(ValueError, match="1 differ: \\[2\\]"):
        paired_difference({1: 0.0, 2: 0.5}, {1: 1.0})


@pytest.mark.parametrize(("num_correct", "num_samples"), [(-1, 3), (4, 3), (0, 0)])
def test_impossible_counts_are_refused(num_correct, num_samples):
    with pytest.raises(ValueError, match="must"):
        pass_at_every_k(num_correct, num_samples)
