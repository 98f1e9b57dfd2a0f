"""Tool calls as models write them: a call outside a thought is run or answered, wherever its texts hold tags."""

import asyncio

import pytest
from tests.agent.talk import call

from opd.agent.parsing import HermesParser, without_thought


def calls(text: str, *, opened: bool = False) -> list[tuple[dict, str]]:
    found = asyncio.run(HermesParser().parse(without_thought(text, opened=opened), []))
    return [(one.arguments, one.problem) for one in found]


@pytest.mark.parametrize("tag", ["</think>", "<think>", "</tool_call>", "<tool_call>"])
def test_a_tag_in_an_argument_is_text(tag):
    text = f"see {tag} there"
    assert calls(call(city=text) + call(city="b")) == [({"city": text}, ""), ({"city": "b"}, "")]


@pytest.mark.parametrize(
    "text",
    [call(city="a") + "<think>and now", f"{call(city='a')}<think>now wait</think>", f"<think>hm</think>{call(city='a')}",
     f"maybe {call(city='b')}</think>{call(city='a')}", f"<think>{call(city='b')}</think>{call(city='a')}<think>so</think>"],
)  # fmt: skip
def test_calls_on_either_side_of_a_thought_count_and_those_in_it_do_not(text):
    assert calls(text) == [({"city": "a"}, "")]


@pytest.mark.parametrize(
    ("written", "arguments", "problem"),
    [
        ('{"name": "price", "parameters": {"city": "a"}}', {"city": "a"}, ""),
        ('{"name": "price"}', {}, ""),
        ('{"name": "price", "args": {"city": "a"}}', {}, 'unknown keys: "args"; its keys are "name" and "arguments"'),
        ('{"name": "price", "parameters": [1]}', {}, '"parameters" must be a JSON object, not list'),
        ('{"name": "price", "arguments": {}}}', {}, "not valid JSON (Extra data"),
    ],
)
def test_arguments_by_either_name_are_read_and_unknown_keys_are_answered(written, arguments, problem):
    [found] = calls(f"<tool_call>{written}</tool_call>")
    assert found[0] == arguments
    assert problem in found[1] if problem else not found[1]
