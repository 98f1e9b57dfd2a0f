"""Packed rows: what they promise about lengths, and taking some of them."""

import pytest
import torch

from opd.batch import RolloutRows, rows_from_batch


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


@pytest.mark.parametrize("field", ["input_ids", "response_mask"])
def test_lengths_that_do_not_add_up_are_refused(field):
    with pytest.raises(ValueError, match="lengths promise 5 tokens of which 2"):
        make_rows(**{field: getattr(make_rows(), field)[:-1]})


def test_an_empty_prompt_is_refused_because_nothing_predicts_the_first_token():
    with pytest.raises(ValueError, match=r"rows \[1\]: empty prompt"):
        make_rows(prompt_lens=torch.tensor([3, 0]), response_lens=torch.tensor([0, 2]))


def test_selected_rows_keep_order_and_weight(make_nested, rows):
    packed = rows_from_batch(make_nested(rows))
    weighted = RolloutRows(**(vars(packed) | {"sample_weights": torch.tensor([1.0, 2.0, 3.0])}))
    chosen = weighted.select([2, 0])
    assert chosen.input_ids.tolist() == rows[2][0] + rows[2][1] + rows[0][0] + rows[0][1]
    assert chosen.response_mask.tolist() == [True, True, True, True]
    assert chosen.sample_weights.tolist() == [3.0, 1.0]


def test_no_rows_may_be_selected():
    nothing = make_rows().select([])
    assert nothing.num_rows == 0
    assert nothing.offsets.tolist() == [0]
    assert nothing.position_ids.tolist() == []


def test_nested_view_has_the_rows_lengths():
    rows = make_rows()
    assert [row.tolist() for row in rows.nested(rows.input_ids).unbind()] == [[1, 2, 3], [4, 5]]


def test_moving_keeps_every_field():
    moved = make_rows(sample_weights=torch.ones(2)).to("cpu")
    assert vars(moved).keys() == vars(make_rows()).keys()
    assert moved.sample_weights.tolist() == [1.0, 1.0]
