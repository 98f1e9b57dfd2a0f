"""Which pairs of tokenizers can be distilled: the ids that both have mean one token, and ordinary text becomes the same ids."""

from __future__ import annotations

import json

import pytest
from tests.worker.families import QWEN2_5, QWEN3, QWEN_TEMPLATE, R1_QWEN, num_pieces, save_tokenizer
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from opd.data.toy.tokenizer import CHARACTERS
from opd.errors import Unfit
from opd.inputs.tokenizers import SharedTokens, shared_tokens

N = num_pieces()
SHARED = N + len(QWEN2_5)


def build_foreign_tokenizer() -> PreTrainedTokenizerFast:
    """Two digits before a third are one token, so that `041` is `04`, `1`; other ids, other special tokens, another template."""
    stop, turn, unknown = "<|stop|>", "<|turn|>", "<|other|>"
    pairs = [f"{number:02d}" for number in range(100)]
    pieces = [*reversed(CHARACTERS), *pairs, unknown, turn, stop]
    backend = Tokenizer(models.WordLevel({piece: index for index, piece in enumerate(pieces)}, unk_token=unknown))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"\d\d(?=\d)|[\s\S]"), behavior="isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in (unknown, turn, stop)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=stop,
        pad_token=stop,
        unk_token=unknown,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = (
        "{% for m in messages %}<|turn|>{{ m.role }}: {{ m.content }}<|stop|>{% endfor %}"
        "{% if add_generation_prompt %}<|turn|>{% endif %}"
    )
    return tokenizer


@pytest.fixture
def qwen2_5(tmp_path):
    return save_tokenizer(tmp_path / "qwen2.5", QWEN2_5, eos="<|im_end|>", template=QWEN_TEMPLATE, model_type="qwen2")


@pytest.fixture
def qwen3(tmp_path):
    return save_tokenizer(tmp_path / "qwen3", QWEN3, eos="<|im_end|>", template=QWEN_TEMPLATE)


def test_one_special_token_more_in_the_teacher_is_accepted(tmp_path, qwen2_5):
    teacher = save_tokenizer(tmp_path / "t", (*QWEN2_5, "<|mine|>"), eos="<|im_end|>")
    assert shared_tokens(qwen2_5, teacher) == SharedTokens(shared=SHARED, student=SHARED, teacher=SHARED + 1)


def test_a_qwen2_5_student_learns_from_a_qwen3_teacher(qwen2_5, qwen3):
    found = shared_tokens(qwen2_5, qwen3, template_kwargs={"enable_thinking": True})
    assert found == SharedTokens(shared=SHARED, student=SHARED, teacher=SHARED + 4)
    assert found.beyond() == {"teacher": SHARED + 4}


def test_a_qwen3_student_learns_from_a_qwen2_5_teacher_while_its_prompts_hold_no_token_of_its_own(qwen2_5, qwen3):
    assert shared_tokens(qwen3, qwen2_5, template_kwargs={"enable_thinking": True}).beyond() == {"student": SHARED + 4}
    with pytest.raises(
        Unfit, match=rf"chat template writes '<think>' \({SHARED + 2}\), '</think>' \({SHARED + 3}\).*enable_thinking"
    ):
        shared_tokens(qwen3, qwen2_5, template_kwargs={"enable_thinking": False})


def test_a_template_of_the_runs_own_is_the_one_that_counts(qwen2_5, qwen3):
    tokenizer = AutoTokenizer.from_pretrained(qwen3)
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    found = shared_tokens(qwen3, qwen2_5, tokenizer=tokenizer, template_kwargs={"enable_thinking": False})
    assert found.beyond() == {"student": SHARED + 4}


def test_a_tokenizer_kept_elsewhere_is_the_students(tmp_path, qwen2_5, qwen3):
    # The way out of renamed ids: the student's weights, read with the teacher's tokenizer.
    teacher = save_tokenizer(tmp_path / "r1", R1_QWEN, eos="<｜end▁of▁sentence｜>")
    read_with = AutoTokenizer.from_pretrained(teacher)
    assert shared_tokens(qwen2_5, teacher, tokenizer=read_with) == SharedTokens(SHARED, SHARED, SHARED)


def test_equal_tokenizers_share_all_and_nobody_has_more(tmp_path, qwen2_5):
    again = save_tokenizer(tmp_path / "t", QWEN2_5, eos="<|endoftext|>", rows=512)
    found = shared_tokens(qwen2_5, again)
    assert (found, found.beyond()) == (SharedTokens(SHARED, SHARED, SHARED), {})


def test_ids_that_mean_other_tokens_are_refused_with_both_meanings_and_what_to_do(tmp_path, qwen2_5):
    teacher = save_tokenizer(tmp_path / "r1", R1_QWEN, eos="<｜end▁of▁sentence｜>")
    with pytest.raises(Unfit) as refused:
        shared_tokens(qwen2_5, teacher)
    text = str(refused.value)
    assert f"7 of the {SHARED} ids that both have mean different tokens" in text
    assert f"{N + 1} ('<|im_start|>' and '<｜User｜>')" in text
    assert text.count("' and '") == 6  # the first six, then dots
    assert ", ..." in text


def test_a_few_renamed_ids_come_with_the_way_to_one_tokenizer_and_foreign_ones_do_not(tmp_path, qwen2_5):
    one_renamed = (*QWEN2_5[:-1], "<|mine|>")
    with pytest.raises(Unfit, match="copy the teacher's tokenizer files"):
        shared_tokens(qwen2_5, save_tokenizer(tmp_path / "t", one_renamed, eos="<|im_end|>"))
    with pytest.raises(Unfit) as refused:  # as many tokens, every id moved by one
        shared_tokens(qwen2_5, _with_vocabulary_moved(tmp_path / "other"))
    assert f"({SHARED} and {SHARED} tokens): {N} of the {SHARED} ids" in str(refused.value)
    assert "choose a teacher of the same family" in str(refused.value)
    assert "kind sft with sft.teacher_answers" in str(refused.value)
    assert "copy" not in str(refused.value)


def test_a_larger_tokenizer_of_another_family_is_refused_with_the_way_that_is_left(tmp_path, qwen2_5):
    # The studies' tokenizer: as text, every one of its characters is a token of the student's too, under another id.
    build_foreign_tokenizer().save_pretrained(tmp_path / "t")
    (tmp_path / "t" / "config.json").write_text('{"model_type": "qwen3", "vocab_size": 224}')
    with pytest.raises(Unfit, match=r"ids that both have mean different tokens.*kind sft with sft\.teacher_answers"):
        shared_tokens(qwen2_5, str(tmp_path / "t"))


def _with_vocabulary_moved(folder):
    path = save_tokenizer(folder, QWEN2_5, eos="<|im_end|>")
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocab = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {piece: (index + 1) % N for piece, index in vocab.items()}
    file.write_text(json.dumps(tokenizer))
    return path


def test_two_tokens_of_ones_own_under_the_same_id_are_refused(tmp_path):
    # An added token of the user's under the id that Qwen3 has its <tool_response> at.
    student = save_tokenizer(tmp_path / "s", (*QWEN2_5, "<|mine|>"), eos="<|im_end|>")
    teacher = save_tokenizer(tmp_path / "t", QWEN3, eos="<|im_end|>")
    with pytest.raises(Unfit, match=rf"{SHARED} \('<\|mine\|>' and '<tool_response>'\)"):
        shared_tokens(student, teacher)


@pytest.mark.parametrize(
    ("section", "value"),
    [
        ("pre_tokenizer", {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}),
        ("normalizer", {"type": "Lowercase"}),
    ],
)
def test_a_teacher_that_cuts_text_otherwise_is_refused_by_the_setting(tmp_path, qwen2_5, section, value):
    teacher = save_tokenizer(tmp_path / "t", QWEN3, eos="<|im_end|>", changed={section: value})
    with pytest.raises(
        Unfit, match=f"cut ordinary text into different tokens .*tokenizers' {section} differs.*sft.teacher_answers"
    ):
        shared_tokens(qwen2_5, teacher)


def test_a_teacher_with_other_merges_is_refused_though_every_token_is_the_same(tmp_path, qwen2_5):
    save_tokenizer(tmp_path / "t", QWEN3, eos="<|im_end|>")
    file = tmp_path / "t" / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["model"]["merges"] = tokenizer["model"]["merges"][::-1]
    file.write_text(json.dumps(tokenizer))
    with pytest.raises(Unfit, match="tokenizers' merges differs"):
        shared_tokens(qwen2_5, str(tmp_path / "t"))


def test_offsets_of_characters_do_not_decide_about_ids(tmp_path, qwen2_5):
    save_tokenizer(tmp_path / "t", QWEN3, eos="<|im_end|>")
    file = tmp_path / "t" / "tokenizer.json"
    file.write_text(file.read_text().replace('"trim_offsets": true', '"trim_offsets": false'))
    assert shared_tokens(qwen2_5, str(tmp_path / "t")).teacher == SHARED + 4


def test_a_student_whose_end_of_text_the_teacher_lacks_is_refused(tmp_path, qwen2_5):
    student = save_tokenizer(tmp_path / "s", (*QWEN2_5, "<|end|>"), eos="<|end|>")
    with pytest.raises(Unfit, match=rf"ends its answers with '<\|end\|>' \({SHARED}\)"):
        shared_tokens(student, qwen2_5)


def test_tokens_without_a_row_in_the_embedding_do_not_count(tmp_path, qwen3):
    # A tokenizer with entries that the model's embedding has no row for, as Gemma's text models have one.
    student = save_tokenizer(tmp_path / "s", QWEN3, eos="<|im_end|>", rows=SHARED + 3)
    assert shared_tokens(student, qwen3) == SharedTokens(shared=SHARED + 3, student=SHARED + 3, teacher=SHARED + 4)
