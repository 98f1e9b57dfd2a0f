"""Adapters: one set of rows from every layout, and errors for what would train on the wrong tokens."""

import numpy as np
import pytest
import torch
from tensordict import NonTensorStack, TensorDict
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from opd.batch import build_opd_batch
from opd.batch.builder import rows_from_batch


def as_lists(rows):
    """Back to (prompt, response, mask) of each row."""
    masks = rows.response_mask.split(rows.response_lens.tolist())
    tokens = rows.input_ids.split(rows.lens.tolist())
    prompt_lens = rows.prompt_lens.tolist()
    return [
        (ids[:p].tolist(), ids[p:].tolist(), mask.int().tolist())
        for ids, p, mask in zip(tokens, prompt_lens, masks, strict=True)
    ]


def test_every_layout_gives_the_rollouts_own_tokens_and_masks(batch, rows):
    # Row 1 keeps its tool tokens out of the mask, and token 0 stays a token although it is the padding id too.
    assert as_lists(rows_from_batch(batch)) == rows


def test_a_tensordict_is_a_batch(make_nested, rows):
    assert as_lists(rows_from_batch(TensorDict(make_nested(rows), batch_size=[len(rows)]))) == rows


@pytest.mark.parametrize(
    ("layout", "name", "change", "words"),
    [
        ("padded", "attention_mask", None, "attention_mask is missing"),
        ("nested", "responses", None, "responses is missing: the batch has .*input_ids"),
        ("nested", "response_mask", None, "response_mask is missing: the batch has .*input_ids"),
        ("nested", "response_mask", lambda batch: batch["input_ids"], "row lengths"),
        ("padded", "attention_mask", lambda batch: batch["attention_mask"][:, 1:], "8 columns, but .* together have 9"),
        ("nested", "position_ids", lambda batch: torch.zeros(3, 4, 7, dtype=torch.int64), "text only"),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_name(make_nested, make_padded, rows, layout, name, change, words):
    batch = make_nested(rows) if layout == "nested" else make_padded(rows)
    if change is None:
        del batch[name]
    else:
        batch[name] = change(batch)
    with pytest.raises(ValueError, match=words):
        rows_from_batch(batch)


@pytest.mark.parametrize("layout", ["nested", "padded"])
def test_input_ids_that_are_not_prompt_and_response_are_refused(make_nested, make_padded, rows, layout):
    make = make_nested if layout == "nested" else make_padded
    shifted = [(prompt, [token + 1 for token in response], mask) for prompt, response, mask in rows]
    batch = make(rows) | {"input_ids": make(shifted)["input_ids"]}
    with pytest.raises(ValueError, match="the forward would read other tokens"):
        rows_from_batch(batch)


TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ' ' + message['content'] + ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant ' }}{% if enable_thinking %}{{ 'think ' }}{% endif %}{% endif %}"
)
WORDS = ["user", "assistant", "tool", "think", "two", "plus", "five", "seven"]


@pytest.fixture
def tokenizer():
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="user"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=core, chat_template=TEMPLATE)


MESSAGES = [[{"role": "user", "content": "two plus five"}], [{"role": "user", "content": "seven"}]]
ENCODED = [["user", "two", "plus", "five", "assistant"], ["user", "seven", "assistant"]]
RESPONSES = [([7], [1]), ([6, 5], [1, 1])]


def message_batch(make):
    batch = make([([1], ids, mask) for ids, mask in RESPONSES])
    return {name: batch[name] for name in batch if name not in ("prompts", "input_ids")}


@pytest.mark.parametrize("thinking", [False, True])
def test_prompts_come_from_the_chat_template_where_the_rollouts_are_absent(
    make_nested, make_padded, tokenizer, thinking
):
    # Defect 9: thinking is what the caller says, for every model.
    expected = [
        ([WORDS.index(word) for word in words] + [WORDS.index("think")] * thinking, *response)
        for words, response in zip(ENCODED, RESPONSES, strict=True)
    ]
    for make in (make_nested, make_padded):
        batch = message_batch(make) | {"raw_prompt": np.array([*MESSAGES, None], dtype=object)[:2]}
        options = {"tokenizer": tokenizer, "chat_template_kwargs": {"enable_thinking": thinking}}
        assert as_lists(build_opd_batch(batch, max_length=9, **options).rows) == expected


def test_messages_may_come_as_a_tensordicts_non_tensor_stack(make_nested, tokenizer):
    batch = TensorDict(message_batch(make_nested) | {"raw_prompt": NonTensorStack(*MESSAGES)}, batch_size=[2])
    rows = build_opd_batch(batch, max_length=8, tokenizer=tokenizer).rows
    assert rows.prompt_lens.tolist() == [5, 3]


def test_as_many_prompts_as_responses_are_needed(make_nested, tokenizer):
    batch = message_batch(make_nested) | {"raw_prompt": MESSAGES[:1]}
    with pytest.raises(ValueError, match="1 rows, but responses have 2"):
        build_opd_batch(batch, max_length=9, tokenizer=tokenizer)
