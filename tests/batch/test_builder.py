"""The builder: exact tokens first, nothing cut or dropped, and the padded view."""

import pytest
import torch

from opd.batch import build_opd_batch, build_opd_batch_from_verl_batch, build_opd_batch_multiturn
from opd.batch.builder import rows_from_batch
from opd.batch.rows import loss_positions


class WordTokenizer:
    """Answers `apply_chat_template` with fixed ids, to tell a template's prompt from the rollout's."""

    def apply_chat_template(self, messages, **options):
        return [40 + len(message["content"]) for message in messages]


def with_messages(batch):
    return batch | {"raw_prompt": [[{"role": "user", "content": "x" * i}] for i in (1, 2, 3)]}


def test_the_rollouts_prompts_are_preferred_to_the_chat_template(make_nested, rows):
    batch = with_messages(make_nested(rows))
    built = build_opd_batch(batch, max_length=9, tokenizer=WordTokenizer())
    assert torch.equal(built.rows.input_ids, rows_from_batch(make_nested(rows)).input_ids)


def test_the_multi_turn_builder_takes_prompts_only(make_nested, rows):
    batch = with_messages(make_nested(rows))
    assert build_opd_batch_multiturn(batch, max_length=9).rows.num_rows == 3
    del batch["prompts"], batch["input_ids"]
    with pytest.raises(ValueError, match="exact tokens only"):
        build_opd_batch_multiturn(batch, max_length=9, tokenizer=WordTokenizer())


def test_the_verl_batch_builder_takes_messages_only(make_nested, make_padded, rows):
    for make in (make_nested, make_padded):
        batch = with_messages(make(rows))
        built = build_opd_batch_from_verl_batch(batch, max_length=9, tokenizer=WordTokenizer())
        assert built.rows.prompt_lens.tolist() == [1, 1, 1]
        assert built.rows.input_ids[built.rows.offsets[:-1]].tolist() == [41, 42, 43]
        assert "prompts" in batch, "the caller's batch is left as it was"


def test_a_batch_without_prompts_and_tokenizer_is_refused(make_nested, rows):
    batch = with_messages(make_nested(rows))
    del batch["prompts"]
    with pytest.raises(ValueError, match="raw_prompt together with a tokenizer"):
        build_opd_batch(batch, max_length=9)


def test_a_row_at_the_limit_is_kept_whole(make_nested, rows):
    built = build_opd_batch(make_nested(rows), max_length=6)  # rows of 6, 6 and 5 tokens
    assert built.rows.lens.tolist() == [6, 6, 5]


def test_an_overlong_row_is_an_error_that_names_the_knob(make_nested, rows):
    # Defect 8: the original slices [:max_length], so 4096 + 24576 tokens silently lose 12288, tool schemas first.
    with pytest.raises(ValueError, match=r"2 of 3 rows exceed max_length=5 .* longest has 6: raise opd.max_length"):
        build_opd_batch(make_nested(rows), max_length=5)


def test_sample_weights_are_one_a_row(make_nested, rows):
    with pytest.raises(ValueError, match="2 entries for 3 rows"):
        build_opd_batch(make_nested(rows), max_length=9, sample_weights=torch.ones(2))


def test_the_padded_view_is_right_padded_int64_with_the_rollouts_mask(batch, rows):
    view = build_opd_batch(batch, max_length=8).padded(max_length=8, pad_token_id=99)
    for side in ("teacher", "student"):
        for name in ("input_ids", "attention_mask", "position_ids"):
            assert view[f"{side}_{name}"].dtype == torch.int64
            assert view[f"{side}_{name}"].shape == (3, 8)
    for i, (prompt, response, mask) in enumerate(rows):
        length = len(prompt) + len(response)
        rest = 8 - length
        assert view["student_input_ids"][i].tolist() == prompt + response + [99] * rest
        assert view["teacher_input_ids"][i].tolist() == prompt + response + [99] * rest
        assert view["student_attention_mask"][i].tolist() == [1] * length + [0] * rest
        assert view["student_position_ids"][i].tolist() == list(range(length)) + [0] * rest
        assert view["_loss_mask"][i].tolist() == [0] * len(prompt) + mask + [0] * rest
    assert view["valid_row_mask"].tolist() == [True, True, True]
    assert "sample_weights" not in view


def test_in_the_padded_view_a_row_without_a_trained_token_is_not_valid(make_nested, rows):
    batch = make_nested([rows[1], ([15], [28], [0])])
    view = build_opd_batch(batch, max_length=6, sample_weights=torch.tensor([0.5, 2.0])).padded(
        max_length=6, pad_token_id=0
    )
    assert view["valid_row_mask"].tolist() == [True, False]
    assert view["student_attention_mask"].sum(dim=1).tolist() == [6, 2]
    assert view["sample_weights"].tolist() == [0.5, 2.0]


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
