"""GRPO's advantages of a step's rows."""

from __future__ import annotations

import pytest
import torch

from opd.trainer.row_facts import group_advantages


def test_a_rows_advantage_is_its_distance_from_its_prompts_mean_whatever_the_order():
    scores, uids = torch.tensor([1.0, 5.0, 0.0, 7.0, 0.5]), ["a", "b", "a", "b", "a"]
    found = group_advantages(scores, uids, by_std=False)
    assert found.tolist() == pytest.approx([0.5, -1.0, -0.5, 1.0, 0.0])
    assert torch.equal(scores, torch.tensor([1.0, 5.0, 0.0, 7.0, 0.5])), "the scores stay as they are"
    by_std = group_advantages(scores, uids, by_std=True)
    assert by_std.tolist() == pytest.approx([1.0, -(0.5**0.5), -1.0, 0.5**0.5, 0.0], abs=1e-5)


def test_answers_that_are_all_alike_have_no_advantage():
    assert group_advantages(torch.ones(4), ["a"] * 4, by_std=True).tolist() == [0.0] * 4


def test_an_answer_whose_siblings_failed_has_nothing_to_be_compared_with():
    found = group_advantages(torch.tensor([1.0, 100.0, 0.0]), ["a", "b", "a"], by_std=False)
    assert found.tolist() == pytest.approx([0.5, 0.0, -0.5])
