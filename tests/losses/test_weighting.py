"""Reward weights within a prompt's group, and sums that are divided once."""

import math

import numpy as np
import pytest
import torch

from opd.losses import reward_weights


def test_weights_are_n_times_softmax_within_the_group():
    # Group a: softmax(1, 0) = (e, 1) / (e + 1), times 2. Group b: equal rewards, so 1 each.
    weights = reward_weights(torch.tensor([1.0, 0.5, 0.0, 0.5]), ["a", "b", "a", "b"], beta=1.0)
    e = math.e
    torch.testing.assert_close(weights, torch.tensor([2 * e / (e + 1), 1.0, 2 / (e + 1), 1.0]))


def test_another_prompts_rewards_do_not_matter():
    # Defects 1 and 5: the original takes one softmax over the batch, so an easy prompt's rows starve a hard prompt's.
    # The two rows of b share 2 in ours and 4 * 2 / (3 + e^2) = 0.77 in one softmax.
    mine = reward_weights(torch.tensor([1.0, 0.0, 0.0, 0.0]), list("aabb"), beta=0.5)
    other = reward_weights(torch.tensor([1.0, 0.0, 9.0, 7.0]), list("aabb"), beta=0.5)
    torch.testing.assert_close(mine[:2], other[:2], rtol=0, atol=0)
    one_softmax = 4 * torch.softmax(torch.tensor([1.0, 0.0, 0.0, 0.0]) / 0.5, 0)
    assert one_softmax[2:].sum().item() == pytest.approx(8 / (3 + math.e**2), rel=1e-5)
    assert mine[2:].sum().item() == pytest.approx(2.0)


def test_a_row_without_siblings_weighs_one():
    assert reward_weights(torch.tensor([0.0, 1.0]), ["a", "b"], beta=0.1).tolist() == [1.0, 1.0]


def test_a_small_beta_does_not_overflow():
    weights = reward_weights(torch.tensor([1000.0, 0.0]), ["a", "a"], beta=1e-6)
    assert weights.tolist() == [2.0, 0.0]


def test_no_row_gives_no_weight_and_numpy_uids_are_accepted():
    assert reward_weights(torch.zeros(0), [], beta=1.0).shape == (0,)
    assert reward_weights(torch.zeros(2), np.array(["a", "b"], dtype=object), beta=1.0).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("rewards", "beta", "words"),
    [
        *(([0.0, 0.0], beta, "reward_beta") for beta in (0.0, -1.0, math.inf, math.nan)),
        ([1.0, math.nan], 1.0, "prompt-7"),
        ([0.0] * 3, 1.0, "one entry a row"),
    ],
)
def test_rewards_and_betas_that_mean_nothing_are_refused(rewards, beta, words):
    with pytest.raises(ValueError, match=words):
        reward_weights(torch.tensor(rewards), ["prompt-3", "prompt-7"], beta=beta)
