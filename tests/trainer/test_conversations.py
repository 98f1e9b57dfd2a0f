"""The data sets of supervised fine-tuning: what is dropped, cut and left out is counted, and rows are the same each time."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from omegaconf import DictConfig, OmegaConf
from tests.agent.talk import END, SCHEMA, TOKENIZER

from opd.data.answered import answered_rows
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
