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
    best_at_every_k,
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


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=8))
def test_best_at_k_equals_the_enumeration_of_all_subsets(values):
    for k, value in enumerate(best_at_every_k(values), start=1):
        largest = [max(subset) for subset in itertools.combinations(values, k)]
        assert value == pytest.approx(sum(largest) / len(largest), abs=1e-12)


def test_best_of_right_and_wrong_is_pass_at_k_also_of_many_samples():
    assert best_at_every_k([0.0] * 250 + [1.0] * 50).tolist() == pytest.approx(pass_at_every_k(50, 300).tolist())


# By hand: one of three answered. Of size 1: that one (1) or a silent one (-1) twice; of size 2: {it, silent} twice, {silent,
# silent} once; all three: it.
def test_a_vote_in_which_nobody_votes_counts_what_it_is_told():
    assert majority_at_every_k([1], [1.0], 3, without_vote=-1.0).tolist() == pytest.approx([-1 / 3, 1 / 3, 1.0])


# By hand: n = 4, c = 1. One draw hits with 1/4; C(3,2)/C(4,2) = 3/6; C(3,3)/C(4,3) = 1/4; all four always hit.
def test_pass_at_k_by_hand():
    assert pass_at_every_k(1, 4).tolist() == pytest.approx([0.25, 0.5, 0.75, 1.0], abs=1e-15)


# By hand: n = 5, c = 2: 1 - C(3,2)/C(5,2) = 1 - 3/10; 1 - C(3,3)/C(5,3) = 1 - 1/10; from k = 4 on always.
def test_pass_at_k_by_hand_with_two_right():
    assert pass_at_every_k(2, 5).tolist() == pytest.approx([0.4, 0.7, 0.9, 1.0, 1.0], abs=1e-15)


# The naive estimate 1 - (1 - c/n)^k is biased low: for n = 4, c = 1, k = 2 it says 0.4375 where 0.5 is right.
def test_pass_at_k_is_not_the_biased_plug_in_estimate():
    assert pass_at_every_k(1, 4)[1] == pytest.approx(0.5)
    assert pytest.approx(0.4375) == 1 - (1 - 1 / 4) ** 2


# By hand, three samples right, wrong, wrong. k = 1: 1/3. k = 2: {r,w} twice (tie: 1/2), {w,w}: (1/2 + 1/2 + 0)/3 = 1/3.
# k = 3: wrong wins.
def test_majority_at_k_by_hand():
    assert majority(["right", "wrong", "wrong"]) == pytest.approx([1 / 3, 1 / 3, 0.0], abs=1e-15)


# By hand: one right answer beside two samples without one. k = 1: 1/3; k = 2: two of three pairs hold it, and then it
# wins alone; k = 3: it wins.
def test_samples_without_an_answer_do_not_vote():
    assert majority(["right", "", ""]) == pytest.approx([1 / 3, 2 / 3, 1.0], abs=1e-15)


# Defect 10 of the original: with an empty `pred` everywhere, its "majority" always chose the first sample.
def test_nothing_to_vote_over_is_zero():
    assert majority(["", "", ""]) == [0.0, 0.0, 0.0]


def test_two_right_answers_in_different_words_share_no_votes_but_both_count():
    assert majority(["right", "also right", "wrong", "wrong"])[3] == 0.0
    assert majority(["right", "also right", "wrong"])[2] == pytest.approx(2 / 3)


def test_an_answer_scored_both_ways_counts_its_mean_accuracy():
    assert majority_at_every_k([2], [0.5], 2).tolist() == pytest.approx([0.5, 0.5])


@given(st.integers(1, 200), st.data())
def test_large_sample_counts_stay_within_zero_and_one_and_pass_at_k_never_falls(num_samples, data):
    num_correct = data.draw(st.integers(0, num_samples))
    values = pass_at_every_k(num_correct, num_samples)
    assert np.all((values >= 0) & (values <= 1))
    assert np.all(np.diff(values) >= 0)
    assert values[0] == pytest.approx(num_correct / num_samples)
    assert values[-1] == float(num_correct > 0)


@pytest.mark.slow
@given(st.lists(st.integers(1, 30), min_size=0, max_size=8), st.integers(0, 20), st.data())
def test_majority_of_one_is_the_mean_and_all_values_are_probabilities(votes, num_abstentions, data):
    accuracies = data.draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=len(votes), max_size=len(votes)))
    num_samples = sum(votes) + num_abstentions
    if num_samples == 0:
        return
    values = majority_at_every_k(votes, accuracies, num_samples)
    right = sum(count for count, accuracy in zip(votes, accuracies, strict=True) if accuracy)
    assert values[0] == pytest.approx(right / num_samples)
    assert np.all((values >= -1e-12) & (values <= 1 + 1e-12))


def test_majority_is_exact_for_many_samples():
    # 300 samples, 151 right in one form, 149 wrong in another: all of them vote right.
    values = majority_at_every_k([151, 149], [1.0, 0.0], 300)
    assert values[-1] == pytest.approx(1.0, abs=1e-9)
    # Any even k ties sometimes, an odd k never: by symmetry in the limit, just above one half throughout.
    assert np.all(values >= 0.5)


# By hand: problem means 0, 1/2, 1: mean 1/2, sd (n-1) 1/2, error 1/2 / sqrt(3).
def test_the_standard_error_is_clustered_by_problem_by_hand():
    assert clustered([0.0, 0.5, 1.0]) == pytest.approx((0.5, 0.5 / math.sqrt(3)))


# The general cluster-robust (CR1) form over single samples: sqrt(P/(P-1) * sum_p (sum_i e_pi)^2) / N.
@given(st.lists(st.integers(0, 6), min_size=2, max_size=12))
def test_the_standard_error_equals_the_cluster_robust_one_over_samples(num_correct):
    num_samples = 6
    samples = np.array([[1.0] * correct + [0.0] * (num_samples - correct) for correct in num_correct])
    residuals = samples - samples.mean()
    num_problems = len(num_correct)
    variance = num_problems / (num_problems - 1) * (residuals.sum(axis=1) ** 2).sum() / samples.size**2
    assert clustered(samples.mean(axis=1)).standard_error == pytest.approx(math.sqrt(variance))


def test_samples_that_agree_within_their_problem_do_not_shrink_the_error():
    # 2 problems x 100 identical samples hold no more than 2 observations; a naive error would say 0.035.
    assert clustered([0.0, 1.0]).standard_error == pytest.approx(math.sqrt(0.5) / math.sqrt(2))


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


@pytest.mark.parametrize(("votes", "accuracies"), [([1], []), ([0], [1.0]), ([4], [1.0])])
def test_impossible_votes_are_refused(votes, accuracies):
    with pytest.raises(ValueError, match=r"votes|must lie"):
        majority_at_every_k(votes, accuracies, 3)


def test_no_problem_is_refused():
    with pytest.raises(ValueError, match="at least one problem"):
        clustered([])
