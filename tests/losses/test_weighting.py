"""Reward weights within a prompt's group, and sums that are divided once."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opd.losses import HiddenTargets, Loss, Weights, head_loss, reward_weights

EXACT = settings(max_examples=60, deadline=None, derandomize=True)
ROWS = st.lists(st.tuples(st.sampled_from("abcd"), st.floats(-5, 5)), min_size=1, max_size=24)


def test_weights_are_n_times_softmax_within_the_group():
    # Group a: softmax(1, 0) = (e, 1) / (e + 1), times 2. Group b: equal rewards, so 1 each.
    weights = reward_weights(torch.tensor([1.0, 0.5, 0.0, 0.5]), ["a", "b", "a", "b"], beta=1.0)
    e = math.e
    torch.testing.assert_close(weights, torch.tensor([2 * e / (e + 1), 1.0, 2 / (e + 1), 1.0]))


def test_another_prompts_rewards_do_not_matter():
    # Defects 1 and 5: the original takes one softmax over the batch, so an easy prompt's rows starve a hard one's:
    # b's two rows share 2 in ours and 4 * 2 / (3 + e^2) = 0.77 in one softmax.
    mine = reward_weights(torch.tensor([1.0, 0.0, 0.0, 0.0]), list("aabb"), beta=0.5)
    other = reward_weights(torch.tensor([1.0, 0.0, 9.0, 7.0]), list("aabb"), beta=0.5)
    torch.testing.assert_close(mine[:2], other[:2], rtol=0, atol=0)
    one_softmax = 4 * torch.softmax(torch.tensor([1.0, 0.0, 0.0, 0.0]) / 0.5, 0)
    assert one_softmax[2:].sum().item() == pytest.approx(8 / (3 + math.e**2), rel=1e-5)
    assert mine[2:].sum().item() == pytest.approx(2.0)


@EXACT
@given(rows=ROWS, beta=st.floats(0.01, 100))
def test_every_groups_mean_weight_is_one(rows, beta):
    uids, rewards = (list(column) for column in zip(*rows, strict=True))
    weights = reward_weights(torch.tensor(rewards), uids, beta=beta)
    for uid in set(uids):
        group = torch.tensor([u == uid for u in uids])
        assert weights[group].mean().item() == pytest.approx(1.0, abs=1e-5)


@EXACT
@given(rows=ROWS, seed=st.integers(0, 1000))
def test_the_order_of_rows_does_not_matter(rows, seed):
    uids, rewards = (list(column) for column in zip(*rows, strict=True))
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    straight = reward_weights(torch.tensor(rewards), uids, beta=1.0)
    shuffled_uids = [uids[i] for i in order.tolist()]
    shuffled = reward_weights(torch.tensor(rewards)[order], shuffled_uids, beta=1.0)
    torch.testing.assert_close(shuffled, straight[order], rtol=1e-6, atol=1e-7)


def test_a_row_without_siblings_weighs_one():
    assert reward_weights(torch.tensor([0.0, 1.0]), ["a", "b"], beta=0.1).tolist() == [1.0, 1.0]


def test_a_small_beta_does_not_overflow():
    weights = reward_weights(torch.tensor([1000.0, 0.0]), ["a", "a"], beta=1e-6)
    assert weights.tolist() == [2.0, 0.0]


def test_no_row_gives_no_weight_and_numpy_uids_are_accepted():
    assert reward_weights(torch.zeros(0), [], beta=1.0).shape == (0,)
    assert reward_weights(torch.zeros(2), np.array(["a", "b"], dtype=object), beta=1.0).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("beta", [0.0, -1.0, float("inf"), float("nan")])
def test_a_beta_that_is_not_positive_is_refused(beta):
    with pytest.raises(ValueError, match="reward_beta"):
        reward_weights(torch.zeros(2), ["a", "a"], beta=beta)


def test_a_reward_that_is_not_finite_is_refused_with_its_prompt():
    with pytest.raises(ValueError, match="prompt-7"):
        reward_weights(torch.tensor([1.0, torch.nan]), ["prompt-3", "prompt-7"], beta=1.0)


def test_lengths_that_differ_are_refused():
    with pytest.raises(ValueError, match="one entry a row"):
        reward_weights(torch.zeros(3), ["a", "a"], beta=1.0)


@pytest.mark.parametrize("micro_batches", [[4], [1, 3], [2, 2], [1, 1, 1, 1], [3, 0, 1]])
def test_the_weighted_gradient_does_not_depend_on_the_micro_batches(micro_batches):
    # Defect 5: weights renormalised inside each micro-batch cancel, and at micro-batch 1 every weight becomes 1.
    generator = torch.Generator().manual_seed(0)
    tokens_of_row = [2, 5, 1, 3]
    num_tokens = sum(tokens_of_row)
    row = torch.repeat_interleave(torch.arange(4), torch.tensor(tokens_of_row))
    student, teacher = (torch.randn(num_tokens, 6, generator=generator) for _ in range(2))
    head, teacher_head = (torch.randn(13, 6, generator=generator) for _ in range(2))
    weights = reward_weights(torch.tensor([1.0, 0.0, 0.0, 1.0]), list("aabb"), beta=0.5)
    per_token = weights[row]

    def gradient(groups):
        trained = head.clone().requires_grad_()
        for rows in groups:
            chosen = torch.isin(row, torch.tensor(rows, dtype=torch.int64))
            output = head_loss(
                student[chosen],
                trained,
                torch.zeros(int(chosen.sum()), dtype=torch.int64),
                Weights(divergence=per_token[chosen]),
                Loss("reverse_kl"),
                targets=HiddenTargets(teacher[chosen], teacher_head),
            )
            (output.loss / num_tokens).backward()
        return trained.grad

    order = iter(range(4))
    groups = [[next(order) for _ in range(size)] for size in micro_batches]
    whole = gradient([[0, 1, 2, 3]])
    torch.testing.assert_close(gradient(groups), whole, rtol=1e-5, atol=1e-7)
