"""The builder: exact tokens first, nothing cut or dropped, and the padded view."""

import pytest
import torch

from opd.batch import build_opd_batch
from opd.batch.rows import loss_positions


def test_the_padded_view_refuses_to_cut(make_nested, rows):
    built = build_opd_batch(make_nested(rows), max_length=9)
    with pytest.raises(ValueError, match="the view cuts nothing"):
        built.padded(max_length=5, pad_token_id=0)


TEACHER_PROMPTS = [[31, 32, 33, 34, 35], [14], [36]]


@pytest.fixture
def privileged(make_nested, rows):
    return make_nested(rows) | {"teacher_prompts": make_nested([(p, [1], [1]) for p in TEACHER_PROMPTS])["prompts"]}


def test_the_teacher_reads_the_same_responses_behind_its_own_prompts(privileged, rows):
    built = build_opd_batch(privileged, max_length=6, sample_weights=torch.tensor([1.0, 2.0, 3.0]))
    assert built.teacher_rows.lens.tolist() == [8, 6, 2], "the limit is that of the student's rows"
    for number, (prompt, (_, response, _)) in enumerate(zip(TEACHER_PROMPTS, rows, strict=True)):
        row = built.teacher_rows.select([number])
        assert row.input_ids.tolist() == prompt + response
        assert row.position_ids.tolist() == list(range(len(prompt) + len(response)))
    assert built.sample_weights.tolist() == [1, 2, 3]
    assert torch.equal(built.teacher_rows.response_mask, built.rows.response_mask)


def test_both_prompts_have_the_same_trained_tokens_each_at_its_own_places(privileged):
    built = build_opd_batch(privileged, max_length=6)
    own, other = (loss_positions(rows) for rows in (built.rows, built.teacher_rows))
    for name in ("token_ids", "row"):
        assert torch.equal(getattr(own, name), getattr(other, name)), name
    for at, rows in ((own, built.rows), (other, built.teacher_rows)):  # a state predicts the next token
        assert torch.equal(rows.input_ids[at.flat_index + 1], at.token_ids)


def test_the_padded_view_has_each_sides_tokens_and_mask(privileged):
    view = build_opd_batch(privileged, max_length=8).padded(max_length=8, pad_token_id=99)
    assert view["student_input_ids"][2].tolist() == [15, 16, 17, 18, 28, 99, 99, 99]
    assert view["teacher_input_ids"][2].tolist() == [36, 28, 99, 99, 99, 99, 99, 99]
    for side, mask in (("student", "_loss_mask"), ("teacher", "_teacher_loss_mask")):
        trained = view[f"{side}_input_ids"][view[mask].bool()]
        assert trained.tolist() == [21, 22, 0, 23, 26, 27, 28]


def test_a_batch_without_prompts_of_the_teachers_own_has_no_rows_of_its_own(make_nested, rows):
    assert build_opd_batch(make_nested(rows), max_length=6).teacher_rows is None
