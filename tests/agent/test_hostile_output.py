"""Any text of a model: the conversation continues or ends, is stored, read back and shown; nothing raises."""

from __future__ import annotations

import asyncio
import json
import random
from types import SimpleNamespace

import pytest
from tests.agent.talk import END, QUESTION, SCHEMA, TOKENIZER, Answered, Tools, ids_of, runner, talk

from opd.agent.dialogue import ENDINGS, Sampled
from opd.agent.environments import load_environment
from opd.agent.tool_pool import ToolCall, _answer
from opd.agent.trajectories import from_lines, to_lines
from opd.agent.verl_tools import call_parser
from opd.agent.viewer import render as page
from opd.rollout.dialogues import DialogueKeeper
from opd_envs.travel.toy import open_world

LONE = '{"name":"nosuch","arguments":{"city":"\\ud800"}}'
SEPARATORS = "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e"
TOOLSET = load_environment("travel")
TOOLS = TOOLSET.tools
ATOMS = (
    LONE, '"\\ud800"', '"\\udc00\\ud800"', "\\ud83d\\ude00", SEPARATORS, "\x00\x07\x1b[31m\x1b]0;title\x07\x7f", "\ufeff\ufffe\uffff",
    "[" * 2000, "]" * 50, '{"a":' * 1500, "}" * 50, "9" * 5000, "-1e999", "1e-999", "NaN", "-Infinity", "null", "true",
    "<tool_call>", "</tool_call>", "<think>", "</think>", "<tool_response>", "<|im_start|>", "<plan>", "</plan>",
    '<answer>', "</answer>", '{"name":', '"arguments":', '"price"', '"get_price"', '"add_costs"', '"prices"', "{{", "}}", "{%",
    ":", ",", "{", "}", "[", "]", '"', "\\", "\\u", "\n", "\r\n", "\t", "静州", "\u202e", "e\u0301" * 20, "😀", "' OR 1=1 --", "../../etc",
    "0", "-0.0", "1e308", '"' + "x" * 3000 + '"',
)  # fmt: skip
VALUES = (
    "\ud800", "a\udfffb", SEPARATORS, "\x00", "\x1b[2J", "", "静州", "9" * 400, 0, -1, 2**63, 10**400, 1e308, float("inf"),
    float("nan"), None, True, [], {}, ["\ud800"], {"\ud800": "\udc00"},
)  # fmt: skip


def nested(depth: int, value: object) -> object:
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


def hostile_call(rng: random.Random) -> str:
    """Return a call in JSON, with a known or unknown tool and values that no tool expects."""
    name = rng.choice((*TOOLS, "price", "nosuch", "\ud800", "a\u2028b", "[/red]", "__class__", "x" * 500))
    names = rng.choice((list(TOOLS.get(name, TOOLS["get_price"]).arguments.model_fields), ["city", "\udc00", ""]))
    arguments = {key: rng.choice(VALUES) for key in names if rng.random() < 0.9}
    if rng.random() < 0.1:
        arguments["city"] = nested(rng.choice((5, 60, 70, 200)), rng.choice(VALUES))
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=True)
    return f"<tool_call>{body}</tool_call>"


def hostile_turn(rng: random.Random) -> str:
    """Return a turn of the model: calls, pieces of calls and of other text."""
    parts = [hostile_call(rng) if rng.random() < 0.4 else rng.choice(ATOMS) for _ in range(rng.randint(1, 6))]
    return "".join(parts)


def keep(*dialogues) -> None:
    """Keep the dialogues as a run does, through the file and back, and render the page."""
    seen = DialogueKeeper(len(dialogues), TOKENIZER, "train")
    for number, dialogue in enumerate(dialogues):
        output = SimpleNamespace(reward_score=0.0, extra_fields={"reward_extra_info": {}})
        row = {"index": number, "global_steps": 1, "data_source": "toy", "reward_model": {"ground_truth": "42"}}
        seen.see(dialogue, output, row, 0)
    items = seen.kept()
    assert from_lines(to_lines(items)) == items
    page("run", items).encode()
    seen.counts.metrics()


@pytest.mark.parametrize("known", [False, True])
def test_half_a_character_in_a_call_is_answered_and_stored(known):
    turn = f"<tool_call>{LONE.replace('nosuch', 'price') if known else LONE}</tool_call>"
    tools = Tools(answer=lambda _, arguments: f"no city {arguments['city']}")
    dialogue = talk([turn + END, "42" + END], tools).dialogue
    (record,) = dialogue.turns[0].calls
    assert record.reply == ("no city \ufffd" if known else "Error: there is no tool 'nosuch'; the tools are price")
    assert dialogue.ending == "answered"
    keep(dialogue)


def test_half_a_character_in_a_reply_of_a_users_own_tool_is_replaced():
    dialogue = talk(
        ['<tool_call>{"name":"price"}</tool_call>' + END, "42" + END], Tools(answer=lambda *_: "\udc00")
    ).dialogue
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


@pytest.mark.slow
def test_300_hostile_conversations_end_are_stored_read_and_shown(tmp_path):
    rng, database = random.Random(18), open_world(tmp_path / "database")

    class Real(Tools):
        async def call(self, name, arguments):
            reply = _answer(TOOLSET, database, ToolCall(name, arguments, 1, None))
            assert reply.error in (None, "bad_arguments")
            assert "<" not in reply.text
            return Answered(text=reply.text, error=reply.error)

    shared = runner(max_response_tokens=3000, max_assistant_turns=4)

    async def converse():
        async def generate(ids, max_tokens):
            said = ids_of(hostile_turn(rng) + END)
            return Sampled(token_ids=said[:max_tokens], logprobs=None)

        return await shared.run(QUESTION, generate=generate, tools=Real(names=tuple(TOOLS)))

    async def all_of(number: int):
        return [await converse() for _ in range(number)]

    for _ in range(3):
        batch = asyncio.run(all_of(100))
        assert {dialogue.ending for dialogue in batch} <= set(ENDINGS)
        keep(*batch)
