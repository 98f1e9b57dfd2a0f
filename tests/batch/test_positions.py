"""The shift: hidden state prompt_len - 1 + j predicts response token j, shown by hand and against verl."""

import torch

from opd.batch.builder import rows_from_batch
from opd.batch.rows import loss_positions, padded_row_starts


def test_positions_of_packed_rows_by_hand(make_nested, rows):
    # Row starts 0, 6, 12; prompts of 3, 1, 4 tokens; responses of 3, 5, 1, two tokens of which are a tool's.
    # Defect 12: the original runs lm_head on all 17 tokens, prompts and tool replies included; 7 are trained on.
    found = loss_positions(rows_from_batch(make_nested(rows)))
    assert found.flat_index.tolist() == [2, 3, 4, 6, 9, 10, 15]
    assert found.token_ids.tolist() == [21, 22, 0, 23, 26, 27, 28]
    assert found.row.tolist() == [0, 0, 0, 1, 1, 1, 2]


def test_positions_of_padded_rows_differ_by_the_row_starts_only(make_nested, rows):
    packed_rows = rows_from_batch(make_nested(rows))
    packed = loss_positions(packed_rows)
    padded = loss_positions(packed_rows, row_starts=padded_row_starts(3, 8))
    assert padded.flat_index.tolist() == [2, 3, 4, 8, 11, 12, 19]
    assert all(torch.equal(a, b) for a, b in zip(packed[1:], padded[1:], strict=True))


def test_a_row_without_a_response_has_no_positions(make_nested):
    found = loss_positions(rows_from_batch(make_nested([([1, 2], [], []), ([3], [4], [1])])))
    assert found.flat_index.tolist() == [2]
    assert found.row.tolist() == [1]


def test_positions_agree_with_the_slices_verl_takes_of_its_own_outputs(make_nested, rows):
    from verl.workers.utils.padding import response_from_nested

    batch = make_nested([(prompt, response, [1] * len(response)) for prompt, response, _ in rows])
    packed = rows_from_batch(batch)
    flat = torch.arange(len(packed.input_ids))
    theirs = response_from_nested(packed.nested(flat), batch["response_mask"])
    assert torch.equal(theirs.values(), loss_positions(packed).flat_index)
