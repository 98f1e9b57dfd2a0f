"""Turns and masks of a step's rows and scores of a validation, in numbers."""

import pytest
import torch

from opd.rollout.rows import Order, Row, row_of
from opd.trainer.metrics import distilled_rows, validation


def row(index: int, mask: list[int], *, turns: int = 2, score: float = 0.0, sample: int = 0, **info: float) -> Row:
    made = row_of(
        Order(index, sample), str(index), [1, 2], [3] * len(mask), mask, num_turns=turns, info=info, data_source="d"
    )
    made.columns["rm_scores"] = torch.tensor([0.0] * (len(mask) - 1) + [score])
    return made


@pytest.mark.parametrize(
    ("masks", "turns", "expected"),
    [
        ([[1, 1, 1], [1, 1]], [2, 2], {"num_turns/max": 2, "tool_mask/has_agent_mask": 0, "tool_mask/tool_ratio": 0}),
        (
            [[1, 0, 0, 1], [1, 1]],
            [4, 2],
            {"num_turns/mean": 3, "tool_mask/llm_tokens": 4, "tool_mask/tool_ratio": 2 / 6},
        ),
    ],
    ids=["single turns", "replies of tools"],
)
def test_turns_and_tokens_of_tools_are_counted(masks, turns, expected):
    rows = [row(i, mask, turns=turns[i], score=float(i == 0)) for i, mask in enumerate(masks)]
    found = distilled_rows(rows, max_response_length=3)
    assert {name: found[f"opd/{name}"] for name in expected} == expected
    assert (found["opd/n_correct"], found["opd/accuracy"]) == (1, 0.5)
    assert found["response_length/clip_ratio"] == 0.5
    rows[1].is_scored = False
    assert distilled_rows(rows, max_response_length=3)["opd/accuracy"] == 1
    rows[0].is_scored = False
    assert "opd/accuracy" not in distilled_rows(rows, max_response_length=3)


def test_an_answer_that_never_came_is_wrong_in_a_validation():
    prompts = [{"uid": "0", "data_source": "d"}, {"uid": "1", "data_source": "d"}]
    rows = [row(0, [1], sample=0, acc=1.0), row(0, [1], sample=1, acc=1.0), row(1, [1], sample=0, acc=1.0)]
    found = validation(rows, prompts, num_samples=2)
    assert found["val-core/d/acc/mean@2"] == 0.75
    assert found["val-aux/num_turns/max"] == 2
