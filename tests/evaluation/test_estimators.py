"""maj@n, standard errors and paired differences by hand."""

import math

import pytest

from opd.evaluation.estimators import clustered, majority, paired_difference, pass_at_every_k


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
