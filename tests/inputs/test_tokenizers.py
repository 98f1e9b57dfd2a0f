"""Pairs of tokenizers that can be distilled: the ids that both have mean one token, and ordinary text becomes the same ids."""

import json

import pytest
from tests.inputs.families import QWEN2_5, QWEN3, QWEN_TEMPLATE, R1_QWEN, num_pieces, save_tokenizer

from opd.errors import Unfit
from opd.inputs.tokenizers import SharedTokens, shared_tokens

N = num_pieces()
SHARED = N + len(QWEN2_5)


@pytest.fixture
def qwen2_5(tmp_path):
    return save_tokenizer(tmp_path / "qwen2.5", QWEN2_5, eos="<|im_end|>", template=QWEN_TEMPLATE, model_type="qwen2")


@pytest.fixture
def qwen3(tmp_path):
    return save_tokenizer(tmp_path / "qwen3", QWEN3, eos="<|im_end|>", template=QWEN_TEMPLATE)


def test_a_qwen3_student_learns_from_a_qwen2_5_teacher_while_its_prompts_hold_no_token_of_its_own(qwen2_5, qwen3):
    assert shared_tokens(qwen3, qwen2_5, template_kwargs={"enable_thinking": True}).beyond() == {"student": SHARED + 4}
    with pytest.raises(
        Unfit, match=rf"chat template writes '<think>' \({SHARED + 2}\), '</think>' \({SHARED + 3}\).*enable_thinking"
    ):
        shared_tokens(qwen3, qwen2_5, template_kwargs={"enable_thinking": False})


def test_equal_tokenizers_share_all_and_a_teacher_with_a_template_of_its_own_is_named(tmp_path, capsys):
    paths = [
        save_tokenizer(
            tmp_path / name, QWEN2_5, eos="<|im_end|>", rows=512, template="{{ messages[0].content }}" + name
        )
        for name in "ab"
    ]
    for teacher in paths:
        found = shared_tokens(paths[0], teacher)
        assert (found, found.beyond()) == (SharedTokens(SHARED, SHARED, SHARED), {})
        assert ("template writes a question differently" in capsys.readouterr().out) == (teacher != paths[0])


@pytest.fixture(params=["folder", "hub id"])
def a_place(request, tmp_path, monkeypatch):
    """Return a folder and the model's path: the folder, or the id of a repository that transformers has in its cache."""
    if request.param == "folder":
        return tmp_path / "t", str(tmp_path / "t")
    for name, value in (("HF_HUB_CACHE", str(tmp_path)), ("HF_HUB_OFFLINE", True)):
        monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
    repository, owner = tmp_path / f"models--{tmp_path.name}--t", tmp_path.name  # ends are kept by path
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("c0ffee")
    return repository / "snapshots" / "c0ffee", f"{owner}/t"


@pytest.mark.parametrize("generation", [None, ["<|endoftext|>", "<|im_end|>"]])
def test_a_teacher_that_ends_its_turns_otherwise_is_refused_unless_a_token_ends_both(a_place, qwen2_5, generation):
    folder, teacher = a_place
    save_tokenizer(folder, QWEN2_5, eos="<|endoftext|>", rows=512)
    if generation is None:
        with pytest.raises(
            Unfit, match=r"ends its turns with '<\|im_end\|>', the teacher with '<\|endoftext\|>'.*eos_token_id"
        ):
            shared_tokens(qwen2_5, teacher)
        return
    ids = [N + QWEN2_5.index(token) for token in generation]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    assert shared_tokens(qwen2_5, teacher).shared == SHARED


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


def _with_vocabulary_moved(folder):
    path = save_tokenizer(folder, QWEN2_5, eos="<|im_end|>")
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocab = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {piece: (index + 1) % N for piece, index in vocab.items()}
    file.write_text(json.dumps(tokenizer))
    return path


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


def test_a_student_whose_end_of_text_the_teacher_lacks_is_refused(tmp_path, qwen2_5):
    student = save_tokenizer(tmp_path / "s", (*QWEN2_5, "<|end|>"), eos="<|end|>")
    with pytest.raises(Unfit, match=rf"ends its answers with '<\|end\|>' \({SHARED}\)"):
        shared_tokens(student, qwen2_5)
