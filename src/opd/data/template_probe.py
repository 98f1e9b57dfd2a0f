"""A chat template asked, with markers, for each role and key that the data have: what it leaves out, repeats or garbles."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from opd.data.chat_template import UnfitTemplate, render
from opd.experiment.algorithm import TOOLS

THOUGHT = "content with a thought"
"""Key, in shapes, of a content with a `<think>` block."""
_LATER = " after the first message, in the order "  # ends the key of such a message; the conversation's roles follow
_BARE_TOOLS = f'{TOOLS} without "function"'
_FIRST = ("system", "developer")  # roles that templates may write at the begin alone
_REPEATED = re.compile(r"\b(user, assistant, |assistant, tool, )\1+")
_MARK = "opdmark"
_QUESTION = {"role": "user", "content": "opd-asked"}
_THOUGHTS = ("reasoning_content", "reasoning", "thinking", THOUGHT)
_SAID = ("content", "tool_calls", *_THOUGHTS)
_CALL_ID = "abcdefghi"
_CALL = {
    "id": _CALL_ID,
    "type": "function",
    "function": {"name": f"{_MARK}name", "arguments": {f"{_MARK}key": f"{_MARK}value"}},
}
_PARAMETERS = {"type": "object", "properties": {f"{_MARK}key": {"type": "string"}}, "required": [f"{_MARK}key"]}
_TOOL = {"name": f"{_MARK}name", "description": f"{_MARK}about", "parameters": _PARAMETERS}
_TOOL_MARKS = [f"{_MARK}name", f"{_MARK}about", f"{_MARK}key"]
_FIX = (
    "write it into the content in the model's own words, or give the model a template that has it (chat_template.jinja)"
)
_FIXES = {
    "developer": "use the role system",
    "tool_calls": "write calls into the content as the model writes them",
    _LATER: "write it into the first message, or as the user",
    TOOLS: "write the tools into the system message as the model reads them, or give the model a template that has tools (chat_template.jinja)",
    "content": "give the model a template that writes it (chat_template.jinja), or leave messages of that role out",
}


class Finding(NamedTuple):
    """Loss, repeat or garbling of one key of one role by a template."""

    what: str
    why: str
    fix: str
    is_purpose: bool
    """True for the thoughts of past turns, which templates leave out on purpose."""

    def __str__(self) -> str:
        return f"{self.what} is {self.why}"


def said_in(messages: Sequence[Mapping[str, Any]], tools: str | None = None) -> Iterator[tuple[str, str]]:
    """Yield (role, key) of what a row says; the role is empty for its column of tools, which is JSON text.

    A system message after the first message has its conversation's roles in its key, repeated turns once.
    """
    yield from ((str(one["role"]), key) for one in messages for key in one)
    if any(one["role"] == "assistant" and "</think>" in one["content"] for one in messages):
        yield "assistant", THOUGHT
    roles = [str(one["role"]) for one in messages]
    for role in {*_FIRST} & {*roles[1:]}:
        yield role, f"content{_LATER}" + _REPEATED.sub(r"\1", ", ".join(roles))
    if tools:
        yield "", TOOLS if all("function" in tool for tool in json.loads(tools)) else _BARE_TOOLS


def findings(
    tokenizer: Any, shapes: Collection[tuple[str, str]], *, is_trained: bool, template: Mapping[str, Any]
) -> Iterator[Finding]:
    """Yield what the template does not write once and as it is.

    Args:
        shapes: (role, key) of the messages; keys that no template is meant to write are passed over.
        is_trained: what the assistant says is trained; else it is a past turn of a prompt.
        template: arguments of the template.
    """
    misplaced = set[str]()
    for role, key in sorted(shapes):
        more, fix = dict(template), _FIXES.get(role) or _FIXES.get(key) or _FIX
        name, later, order = key.partition(_LATER)
        if not role:
            messages, said, fix = [_QUESTION], _TOOL_MARKS, _FIXES[TOOLS]
            more[TOOLS] = [_TOOL if key == _BARE_TOOLS else {"type": "function", "function": _TOOL}]
        elif later and role not in misplaced:
            (messages, said), fix = _in_order(role, order.split(", ")), _FIXES[_LATER]
        elif key in _SAID:
            messages, said = _conversation(role, key, is_trained=is_trained)
        else:
            continue
        is_finished = is_trained and messages[-1]["role"] == "assistant"
        if why := _why(tokenizer, messages, said, is_finished=is_finished, template=more):
            what = f"the {name} of role {role}{later}{order}" if role else f"the column {key}"
            misplaced |= {role} if later else set()
            yield Finding(what, why, fix, role == "assistant" and key in _THOUGHTS and not is_trained)


def check_template(
    tokenizer: Any, shapes: Collection[tuple[str, str]], *, is_trained: bool, template: Mapping[str, Any]
) -> None:
    """Print what a template leaves out on purpose, and refuse a template that loses or garbles anything else.

    Raises:
        UnfitTemplate: with the way out.
    """
    found = list(findings(tokenizer, shapes, is_trained=is_trained, template=template))
    for one in found:
        if one.is_purpose:
            print(f"note: {one} by the chat template, as of every past turn of the assistant", flush=True)
    lost = [one for one in found if not one.is_purpose]
    if lost:
        error = UnfitTemplate.of(tokenizer, "; ".join(map(str, lost)), has_tools=False)
        fix = "; ".join(dict.fromkeys(one.fix for one in lost))
        raise UnfitTemplate([replace(problem, fix=fix) for problem in error.problems])


def _conversation(role: str, key: str, *, is_trained: bool) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a conversation that says markers in one key of one role, and the markers."""
    mark = f"{_MARK}said"
    value: Any = {THOUGHT: f"<think>\n{mark}\n</think>\n\nopd-answered", "tool_calls": [_CALL]}.get(key, mark)
    name = "content" if key == THOUGHT else key
    said = {"role": role, "content": "" if key == "tool_calls" else "opd-answered"} | {name: value}
    marks = [f"{_MARK}name", f"{_MARK}key", f"{_MARK}value"] if key == "tool_calls" else [mark]
    if role == "assistant":
        reply = [{"role": "tool", "content": "opd-replied", "tool_call_id": _CALL_ID, "name": f"{_MARK}name"}]
        after = [] if is_trained else [*(reply if key == "tool_calls" else []), _QUESTION]
        return [_QUESTION, said, *after], marks
    if role == "tool":
        called = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
        return [_QUESTION, called, said | {"tool_call_id": _CALL_ID, "name": f"{_MARK}name"}], marks
    return [said] if role == "user" else [said, _QUESTION], marks


def _in_order(role: str, order: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a conversation of these roles that says a marker in each message of one role after the first, and the markers."""
    messages, marks = list[dict[str, Any]](), list[str]()
    for place, (one, following) in enumerate(zip(order, [*order[1:], ""], strict=True)):
        message: dict[str, Any] = {"role": one, "content": f"opd-{place}"}
        if one == role and place:
            message["content"] = f"{_MARK}{place}said"
            marks.append(message["content"])
        elif one == "assistant" and following == "tool":
            message |= {"content": "", "tool_calls": [_CALL]}
        elif one == "tool":
            message |= {"tool_call_id": _CALL_ID, "name": f"{_MARK}name"}
        messages.append(message)
    return messages, marks


def _why(
    tokenizer: Any, messages: list[dict[str, Any]], marks: list[str], *, is_finished: bool, template: Mapping[str, Any]
) -> str:
    """Return what happens to the markers; empty where each is written as it is."""
    try:
        text = render(tokenizer, messages, is_finished=is_finished, **template)
    except UnfitTemplate as error:
        return f"refused ({error.problems[0].rule.partition('it fails: ')[2]})"
    if any(mark not in text for mark in marks):
        return "left out"
    if f"'{_MARK}key'" in text:
        return "written as a Python object"
    if f'\\"{_MARK}key\\"' in text:
        return "encoded twice"
    is_repeated = any(mark.endswith("said") and text.count(mark) > 1 for mark in marks)
    return "written more than once" if is_repeated else ""
