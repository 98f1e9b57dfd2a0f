"""GRPO's advantages of a step's rows."""

import pytest
import torch
from omegaconf import OmegaConf

from opd.rollout.rows import Order, Row, row_of
from opd.trainer.row_facts import group_advantages, put_advantages


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


def _rows(scores: list[float]) -> list[Row]:
    """Return answers to one prompt by their scores, each of three tokens of which the model wrote the last two."""
    rows = []
    for sample, score in enumerate(scores):
        rows.append(row_of(Order(7, sample), "a", [1], [2, 3, 4], [0, 1, 1]))
        rows[-1].columns["rm_scores"] = torch.tensor([0.0, 0.0, score])
    return rows


def test_an_answer_is_compared_with_its_siblings_and_each_of_its_own_tokens_gets_the_advantage():
    rows = _rows([1.0, 0.0])
    put_advantages(rows, OmegaConf.create({"adv_estimator": "grpo", "norm_adv_by_std_in_grpo": False}))
    assert [row.columns["advantages"].tolist() for row in rows] == [[0, 0.5, 0.5], [0, -0.5, -0.5]]
    assert torch.equal(rows[0].columns["returns"], rows[0].columns["advantages"])


def test_verls_other_estimators_of_groups_are_called_by_their_names():
    rows = _rows([1.0, 0.0, 0.0])
    put_advantages(rows, OmegaConf.create({"adv_estimator": "rloo"}))
    assert [row.columns["advantages"].tolist() for row in rows] == [[0, 1, 1], [0, -0.5, -0.5], [0, -0.5, -0.5]]
