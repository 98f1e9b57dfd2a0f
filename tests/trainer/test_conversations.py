"""The data sets of supervised fine-tuning: what is dropped, cut and left out is counted, and rows are the same each time."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import DictConfig, OmegaConf
from tests.agent.talk import END, SCHEMA, TOKENIZER

from opd.data.answered import answered_rows
from opd.experiment import SpecError
from opd.trainer.conversations import ConversationDataset

USER, SAID = {"role": "user", "content": "the price"}, {"role": "assistant", "content": "42"}
LONG = {"role": "user", "content": "price " * 60}


def dataset(folder: Path, conversations: list, *, tools: list | None = None, **config) -> ConversationDataset:
    columns = {"messages": conversations} | ({} if tools is None else {"tools": tools})
    path = folder / "c.parquet"
    pq.write_table(pa.table(columns), path)
    return ConversationDataset([str(path)], TOKENIZER, settings(**config))


def settings(**config) -> DictConfig:
    least = {
        "prompt_key": "messages", "max_prompt_length": 30, "max_response_length": 12, "filter_overlong_prompts": True,
        "shuffle": False, "seed": 1,
    }  # fmt: skip
    return OmegaConf.create(least | config)


def test_each_conversation_is_read_as_its_rows(tmp_path):
    found = dataset(tmp_path, [[USER, SAID], [USER, SAID | {"content": "7"}]])
    assert len(found) == 2
    assert [found.row(i) for i in range(2)] == [
        row for text in ("42", "7") for row in answered_rows(TOKENIZER, [USER, {"role": "assistant", "content": text}])
    ]
    assert (found.num_overlong_dropped, found.num_cut) == (0, 0)


def test_what_does_not_fit_is_dropped_or_cut_and_counted(tmp_path):
    many = SAID | {"content": "price " * 20}
    found = dataset(tmp_path, [[LONG, SAID], [USER, many], [USER, SAID, USER, SAID]])
    assert (len(found), found.num_overlong_dropped, found.num_cut) == (2, 1, 2)
    cut = found.row(0)
    assert cut.is_cut
    assert (len(cut.response), cut.mask) == (12, [1] * 12)
    assert END not in TOKENIZER.decode(cut.response, skip_special_tokens=False)


def test_tools_are_read_as_json_and_keys_that_other_messages_have_are_not_there(tmp_path):
    calls = [{"type": "function", "function": {"name": "price", "arguments": "{}"}}]
    called = {"role": "assistant", "content": "", "tool_calls": calls}
    conversations = [[USER, called], [USER, SAID]]
    found = dataset(
        tmp_path, conversations, tools=[json.dumps([SCHEMA]), None], max_prompt_length=99, max_response_length=99
    )
    assert found.row(0) == answered_rows(TOKENIZER, conversations[0], tools=[SCHEMA])[0]
    assert found.row(1) == answered_rows(TOKENIZER, conversations[1])[0]


@pytest.mark.parametrize(
    ("tools", "why"),
    [("price", "Expecting value"), ('{"name": "price"}', "no list of objects"), ("[1]", "no list of objects")],
)
def test_tools_that_are_no_list_in_json_are_refused_with_their_row(tmp_path, tools, why):
    with pytest.raises(SpecError, match=why) as refused:
        dataset(tmp_path, [[USER, SAID]] * 2, tools=[None, tools])
    [problem] = refused.value.problems
    assert (problem.path, problem.value) == ("data", tools)
    assert problem.source.startswith("row 1 of ['")
    assert "json.dumps" in problem.fix


def test_a_conversation_that_the_assistant_begins_is_refused_with_its_row(tmp_path):
    with pytest.raises(SpecError) as refused:
        dataset(tmp_path, [[USER, SAID], [SAID, USER, SAID]])
    [problem] = refused.value.problems
    assert problem.path == "data"
    assert problem.rule.startswith("a conversation begins with a system or user message")
    assert problem.source.startswith("row 1 of ['")
