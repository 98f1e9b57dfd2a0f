"""Conversations as rows: which tokens are trained, token by token, and that a row reads as the model would have been asked."""

import copy
import json

import pytest
from tests.agent.talk import END, SCHEMA, TOKENIZER, call
from tests.agent.test_conversation import DEEPSEEK_R1, FORGETS_THOUGHTS
from tokenizers.processors import TemplateProcessing

from opd.data.answered import AnsweredRow, answer_row, answered_rows
from opd.data.chat_template import UnfitTemplate, render

USER, CITY = {"role": "user", "content": "the price"}, {"role": "user", "content": "name of city"}


def said(text: str, **more) -> dict:
    return {"role": "assistant", "content": text, **more}


def with_template(template: str):
    changed = copy.deepcopy(TOKENIZER)
    changed.chat_template = template
    return changed


def parts(row: AnsweredRow, trained: int) -> list[str]:
    """The text of each stretch of a row's response whose tokens are (1) or are not (0) trained."""
    found: list[list[int]] = []
    before = None
    for token, flag in zip(row.response, row.mask, strict=True):
        if flag == trained:
            if before != flag:
                found.append([])
            found[-1].append(token)
        before = flag
    return [TOKENIZER.decode(ids, skip_special_tokens=False) for ids in found]


def test_the_models_turns_are_trained_with_their_ends_and_nothing_else_is():
    system = {"role": "system", "content": "the assistant"}
    messages = [system, USER, said("42"), CITY, said("静州 3")]
    [row] = answered_rows(TOKENIZER, messages)
    assert parts(row, 1) == [f"42{END}", f"静州 3{END}"]
    assert parts(row, 0) == [render(TOKENIZER, messages[:4]).partition(f"42{END}")[2]]
    assert row.prompt == TOKENIZER(render(TOKENIZER, messages[:2]), add_special_tokens=False)["input_ids"]
    whole = render(TOKENIZER, messages, is_finished=True)
    ids = TOKENIZER(whole, add_special_tokens=False)["input_ids"]
    read = row.prompt + row.response
    assert read == ids[: len(read)]
    assert whole[whole.rfind(END) + len(END) :] == TOKENIZER.decode(ids[len(read) :], skip_special_tokens=False)


def test_tool_calls_are_trained_and_the_replies_are_not():
    calls = [{"type": "function", "function": {"name": "price", "arguments": {}}}]
    messages = [USER, said("", tool_calls=calls), {"role": "tool", "content": "of 7"}, said("7")]
    rows = answered_rows(TOKENIZER, messages, tools=[SCHEMA])
    [row] = rows
    first, second = parts(row, 1)
    assert json.loads(first.partition("<tool_call>")[2].partition("</tool_call>")[0])["name"] == "price"
    assert call("price") in first
    assert second == f"7{END}"
    assert "of 7" in parts(row, 0)[0]
    assert "<tools>\nprice\n</tools>" in TOKENIZER.decode(row.prompt)


def test_turns_that_the_template_rewrites_later_are_rows_of_their_own():
    tokenizer = with_template(FORGETS_THOUGHTS)
    messages = [USER, said("42"), CITY, said("3")]
    first, second = answered_rows(tokenizer, messages, enable_thinking=False)
    for row, asked, answer in ((first, messages[:1], "42"), (second, messages[:3], "3")):
        assert row.prompt == tokenizer(render(tokenizer, asked, enable_thinking=False))["input_ids"]
        assert row.response == tokenizer(answer + END)["input_ids"]
        assert row.mask == [1] * len(row.response)


def test_the_first_token_that_a_template_writes_is_not_added_again():
    tokenizer = with_template(TOKENIZER.pad_token + TOKENIZER.chat_template)
    first = (TOKENIZER.pad_token, TOKENIZER.pad_token_id)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=f"{first[0]} $A", special_tokens=[first])
    assert tokenizer("a")["input_ids"][0] == first[1]
    [row] = answered_rows(tokenizer, [USER, said("42")])
    assert [*row.prompt, *row.response].count(first[1]) == 1


def test_a_finished_turn_that_does_not_begin_with_its_header_is_refused():
    with pytest.raises(UnfitTemplate, match="does not begin with what the model is asked with"):
        answered_rows(with_template(DEEPSEEK_R1), [USER, said("42")])


def test_a_row_is_cut_at_its_end_and_says_so():
    row = answer_row(TOKENIZER, [USER], [5, 6, 7])
    assert row.prompt == TOKENIZER(render(TOKENIZER, [USER]), add_special_tokens=False)["input_ids"]
    assert row.cut(3) == row
    assert row.cut(2) == AnsweredRow(row.prompt, [5, 6], [1, 1], is_cut=True)
