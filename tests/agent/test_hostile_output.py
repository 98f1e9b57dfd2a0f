"""Any text of a model: the conversation continues or ends, is stored and read back; nothing raises."""

import asyncio
from types import SimpleNamespace

import pytest
from tests.agent.talk import END, SCHEMA, TOKENIZER, Tools, ids_of, talk

from opd.agent.metrics import AgentCounts
from opd.agent.trajectories import Trajectory, from_lines, to_lines
from opd.agent.verl_tools import call_parser

LONE = '{"name":"nosuch","arguments":{"city":"\\ud800"}}'


def keep(*dialogues) -> None:
    """Keep the dialogues as a run does, through the file and back."""
    output = SimpleNamespace(reward_score=0.0, extra_fields={"reward_extra_info": {}})
    row = {"index": 1, "global_steps": 1, "data_source": "toy", "reward_model": {"ground_truth": "42"}}
    places = {"partition": "train", "tokenizer": TOKENIZER}
    items = [Trajectory.of(one, output, row, sample=number, **places) for number, one in enumerate(dialogues)]
    assert from_lines(to_lines(items)) == items
    for dialogue in dialogues:
        AgentCounts.of(dialogue).metrics()


@pytest.mark.parametrize("known", [False, True])
def test_half_a_character_in_a_call_is_answered_and_stored(known):
    turn = f"<tool_call>{LONE.replace('nosuch', 'price') if known else LONE}</tool_call>"
    tools = Tools(answer=lambda _, arguments: f"no city {arguments['city']}")
    dialogue = talk([turn + END, "42" + END], tools)
    (record,) = dialogue.turns[0].calls
    assert record.reply == ("no city \ufffd" if known else "Error: there is no tool 'nosuch'; the tools are price")
    assert dialogue.ending == "answered"
    keep(dialogue)


def test_half_a_character_in_a_reply_of_a_users_own_tool_is_replaced():
    dialogue = talk(['<tool_call>{"name":"price"}</tool_call>' + END, "42" + END], Tools(answer=lambda *_: "\udc00"))
    assert dialogue.turns[0].calls[0].reply == "\ufffd"


def test_a_parser_of_verls_that_stumbles_leaves_an_unreadable_call(monkeypatch):
    text = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.price:0<|tool_call_argument_begin|>"
        '{"city": "\\ud800"}<|tool_call_end|><|tool_calls_section_end|>'
    )
    parser = call_parser("kimi", TOKENIZER, [SCHEMA])
    (call,) = asyncio.run(parser.parse(text, ids_of(text)))
    assert call.arguments == {"city": "\ufffd"}

    def stumble(*_):
        raise KeyError("what the model wrote")

    monkeypatch.setattr(type(parser._parser), "_infer_tool_name", stumble)
    (call,) = asyncio.run(parser.parse(text, ids_of(text)))
    assert call.problem == "a call is not in the format kimi"
