"""maj@n and standard errors by hand."""

import math

import pytest

from opd.evaluation.estimators import clustered, majority, pass_at_every_k


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


@pytest.mark.parametrize(("num_correct", "num_samples"), [(-1, 3), (4, 3), (0, 0)])
def test_impossible_counts_are_refused(num_correct, num_samples):
    with pytest.raises(ValueError, match="must"):
        pass_at_every_k(num_correct, num_samples)
