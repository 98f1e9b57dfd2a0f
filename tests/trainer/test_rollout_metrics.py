"""Turns and masks of a step's rows, in numbers: the same names with tools and without."""

from __future__ import annotations

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from opd.trainer.distillation import READS, rollout_metrics


def metrics_of(masks: list[list[int]], turns: list[int]) -> dict[str, float]:
    """The metrics of rows with these masks of their response tokens; scores are 1, 0, 1 and so on."""
    nested = lambda rows: torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)  # noqa: E731
    scores = [[0.0] * (len(mask) - 1) + [float(i % 2 == 0)] for i, mask in enumerate(masks)]
    fields = {
        "prompts": nested([[1, 2]] * len(masks)),
        "responses": nested([[3] * len(mask) for mask in masks]),
        "response_mask": nested(masks),
        "rm_scores": nested(scores),
        "num_turns": NonTensorStack(*(NonTensorData(turn) for turn in turns)),
        "extra_fields": NonTensorStack(*(NonTensorData({}) for _ in masks)),
    }
    assert set(fields) == set(READS)
    return rollout_metrics(TensorDict(fields, batch_size=[len(masks)]), max_response_length=8)


def test_a_single_turn_has_two_turns_a_row_and_no_token_of_a_tool():
    found = metrics_of([[1, 1, 1], [1, 1]], [2, 2])
    assert {name: found[f"opd/num_turns/{name}"] for name in ("min", "max", "mean")} == {"min": 2, "max": 2, "mean": 2}
    masks = {
        name: found[f"opd/tool_mask/{name}"] for name in ("has_agent_mask", "llm_tokens", "tool_tokens", "tool_ratio")
    }
    assert masks == {"has_agent_mask": 0, "llm_tokens": 5, "tool_tokens": 0, "tool_ratio": 0}
    assert (found["opd/n_correct"], found["opd/accuracy"]) == (1, 0.5)


def test_replies_of_tools_are_counted_apart():
    found = metrics_of([[1, 0, 0, 1], [1, 1]], [4, 2])
    assert {name: found[f"opd/num_turns/{name}"] for name in ("min", "max", "mean")} == {"min": 2, "max": 4, "mean": 3}
    masks = {
        name: found[f"opd/tool_mask/{name}"] for name in ("has_agent_mask", "llm_tokens", "tool_tokens", "tool_ratio")
    }
    assert masks == {"has_agent_mask": 1, "llm_tokens": 4, "tool_tokens": 2, "tool_ratio": 2 / 6}
