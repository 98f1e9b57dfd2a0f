"""Packed rows: what they promise about lengths, taking some of them, and tokens by their origin."""

import pytest
import torch

from opd.batch.builder import rows_from_batch
from opd.batch.rows import RolloutRows, tool_mask_metrics


def make_rows(**changes):
    fields = {
        "input_ids": torch.tensor([1, 2, 3, 4, 5]),
        "prompt_lens": torch.tensor([2, 1]),
        "response_lens": torch.tensor([1, 1]),
        "response_mask": torch.tensor([True, False]),
    }
    return RolloutRows(**(fields | changes))


def test_offsets_positions_and_trained_tokens_follow_from_the_lengths():
    rows = make_rows()
    assert rows.num_rows == 2
    assert rows.offsets.tolist() == [0, 3, 5]
    assert rows.position_ids.tolist() == [0, 1, 2, 0, 1]
    assert rows.row_of_response_token.tolist() == [0, 1]
    assert rows.num_trained_tokens.tolist() == [1, 0]


def test_an_empty_prompt_is_refused_because_nothing_predicts_the_first_token():
    with pytest.raises(ValueError, match=r"rows \[1\]: empty prompt"):
        make_rows(prompt_lens=torch.tensor([3, 0]), response_lens=torch.tensor([0, 2]))


def test_selected_rows_keep_their_order(make_nested, rows):
    chosen = rows_from_batch(make_nested(rows)).select([2, 0])
    assert chosen.input_ids.tolist() == rows[2][0] + rows[2][1] + rows[0][0] + rows[0][1]
    assert chosen.response_mask.tolist() == [True, True, True, True]


def test_no_rows_may_be_selected():
    nothing = make_rows().select([])
    assert nothing.num_rows == 0
    assert nothing.offsets.tolist() == [0]
    assert nothing.position_ids.tolist() == []


def test_nested_view_has_the_rows_lengths():
    rows = make_rows()
    assert [row.tolist() for row in rows.nested(rows.input_ids).unbind()] == [[1, 2, 3], [4, 5]]


def counts(rows: RolloutRows) -> tuple[float, ...]:
    metrics = tool_mask_metrics(rows)
    return tuple(
        metrics[f"opd/tool_mask/{name}"] for name in ("llm_tokens", "tool_tokens", "tool_ratio", "has_agent_mask")
    )


def test_tokens_of_students_and_tools_are_counted_with_any_padding(batch):
    # Defect 10: the original counts response_mask == 0, which in the padded layouts is 8 and 14 instead of 2.
    assert counts(rows_from_batch(batch)) == (7, 2, pytest.approx(2 / 9), 1)


def test_verls_synthetic_padding_rows_and_empty_responses_are_no_tool_calls(make_nested, rows):
    # verl fills a batch with rows of 127 end-of-sequence tokens as prompt and one masked token as response.
    padding = ([3] * 127, [3], [0])
    assert counts(rows_from_batch(make_nested([*rows, padding, padding])))[:2] == (7, 2)
    assert counts(rows_from_batch(make_nested([([1, 2], [], []), ([1], [2], [1])]))) == (1, 0, 0, 0)
    assert counts(rows_from_batch(make_nested([padding]))) == (0, 0, 0, 0)
