"""pass@k, maj@k and standard errors: hand-computed cases, and brute force over every subset."""

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opd.evaluation.estimators import (
    clustered,
    majority_at_every_k,
    paired_difference,
    pass_at_every_k,
)

ANSWERS = st.lists(st.sampled_from(["right", "also right", "wrong", "wronger", ""]), min_size=1, max_size=8)
"""One problem's samples; an empty string is a sample without an answer."""
RIGHT = {"right", "also right"}


def majority(answers: list[str]) -> list[float]:
    """maj@k for every k, from the answers themselves."""
    votes = Counter(answer for answer in answers if answer)
    return majority_at_every_k(
        list(votes.values()), [float(answer in RIGHT) for answer in votes], len(answers)
    ).tolist()


def brute_force_pass(answers: list[str], k: int) -> Fraction:
    """The share of k-subsets that hold a right answer."""
    subsets = list(itertools.combinations(answers, k))
    return Fraction(sum(any(answer in RIGHT for answer in subset) for subset in subsets), len(subsets))


def brute_force_majority(answers: list[str], k: int) -> Fraction:
    """The mean over k-subsets of the share of right answers among those with most votes; 0 without any answer."""
    subsets = list(itertools.combinations(answers, k))
    total = Fraction(0)
    for subset in subsets:
        votes = Counter(answer for answer in subset if answer)
        top = [answer for answer, count in votes.items() if count == max(votes.values())]
        if top:
            total += Fraction(sum(answer in RIGHT for answer in top), len(top))
    return total / len(subsets)


@given(ANSWERS)
def test_pass_at_k_equals_the_enumeration_of_all_subsets(answers):
    num_correct = sum(answer in RIGHT for answer in answers)
    for k, value in enumerate(pass_at_every_k(num_correct, len(answers)), start=1):
        assert value == pytest.approx(float(brute_force_pass(answers, k)), abs=1e-14)


@given(ANSWERS)
def test_majority_at_k_equals_the_enumeration_of_all_subsets(answers):
    for k, value in enumerate(majority(answers), start=1):
        assert value == pytest.approx(float(brute_force_majority(answers, k)), abs=1e-13)


def test_majority_is_exact_for_many_samples():
    # 300 samples, 151 right in one form, 149 wrong in another: all of them vote right.
    values = majority_at_every_k([151, 149], [1.0, 0.0], 300)
    assert values[-1] == pytest.approx(1.0, abs=1e-9)
    # Any even k ties sometimes, an odd k never: by symmetry in the limit, just above one half throughout.
    assert np.all(values >= 0.5)


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
