"""Reads tool calls out of a model's turn: every call it began is returned, the unreadable ones with what is wrong."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from opd.text import storable

MAX_DEPTH = 64
"""Lists and objects within each other in a call: no tool's arguments come near, and what later copies, pickles or prints
a call recurses."""
THOUGHT_START, THOUGHT_END = "<think>", "</think>"
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_TAG = re.compile("|".join((_OPEN, _CLOSE, THOUGHT_START, THOUGHT_END)))
_BLANK = re.compile(r"\s*")
_ARGUMENTS = ("arguments", "parameters")  # Llama's templates write the second


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """One call of a turn."""

    name: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    problem: str = ""
    """Why the call cannot be run, in words for the model; empty for a readable call."""
    call_id: str | None = None
    """The model's own id of the call, in formats that have one."""


class CallParser(Protocol):
    """A tool-call syntax."""

    stop_token_ids: Sequence[int]
    """Tokens that end a turn in this syntax, in addition to the end-of-turn token."""
    opening: str | None
    """Text that begins a call, where the syntax has one."""

    async def parse(self, text: str, token_ids: Sequence[int]) -> list[ToolCall]:
        """Return the calls in what a turn says outside its thoughts, in their order: decoded with special tokens, and as ids."""
        ...


def without_thought(text: str, *, opened: bool) -> str:
    """Return what a turn says outside its thoughts, where alone a tool call is one.

    A tag within the JSON of a call is part of the call. An end of a thought that the turn did not begin ends one that
    began before the turn.

    Args:
        text: the model's turn.
        opened: the turn's header, which the model did not write, already begins the thought.
    """
    spoken, start, place, thinks = "", 0, 0, opened
    while tag := _TAG.search(text, place):
        place = tag.end()
        if tag[0] == _OPEN and not thinks:
            place = _end_of_json(text, place) or place
        elif tag[0] == THOUGHT_START and not thinks:
            spoken, thinks = spoken + text[start : tag.start()], True
        elif tag[0] == THOUGHT_END:
            spoken, start, thinks = spoken if thinks else "", place, False
    return spoken if thinks else spoken + text[start:]


def _end_of_json(text: str, start: int) -> int | None:
    """Return the end of the JSON object that begins at `start`; None where there is none."""
    start = cast("re.Match[str]", _BLANK.match(text, start)).end()
    if not text.startswith("{", start):
        return None
    try:
        return json.JSONDecoder().raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return None


class HermesParser:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

    verl's own parser of this syntax drops what it cannot read, so that the model waits for a reply that never comes.
    """

    stop_token_ids: Sequence[int] = ()
    opening: str | None = _OPEN

    async def parse(self, text: str, token_ids: Sequence[int]) -> list[ToolCall]:
        calls, place = [], 0
        while (begin := text.find(_OPEN, place)) >= 0:
            begin += len(_OPEN)
            place = _end_of_json(text, begin) or begin
            end, following = text.find(_CLOSE, place), text.find(_OPEN, place)
            if end < 0 or 0 <= following < end:
                calls.append(ToolCall(problem="the call is not closed by its end tag"))
                place = max(place, following)
            else:
                calls.append(call_from_json(text[begin:end]))
                place = end + len(_CLOSE)
        return calls


def call_from_json(text: str) -> ToolCall:
    """Return a call from `{"name": ..., "arguments": {...}}`."""
    try:
        value = _loads(text)
    except (ValueError, RecursionError) as error:
        return ToolCall(problem=f"the call is not valid JSON ({error})")
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return ToolCall(problem='the call must be a JSON object with the keys "name" and "arguments"')
    name, given = value.pop("name"), next((key for key in _ARGUMENTS if key in value), _ARGUMENTS[0])
    arguments = value.pop(given, {})
    if value:
        unknown = ", ".join(f'"{key}"' for key in value)
        return ToolCall(name=name, problem=f'the call has unknown keys: {unknown}; its keys are "name" and "{given}"')
    return _checked(name, arguments, given)


def call_from_parts(name: str, arguments: str, call_id: str | None) -> ToolCall:
    """Return a call whose arguments came as JSON text, as verl's parsers hand them out."""
    try:
        return _checked(name, _loads(arguments), _ARGUMENTS[0], call_id)
    except (ValueError, RecursionError) as error:
        return ToolCall(name=name, problem=f"the arguments are not valid JSON ({error})", call_id=call_id)


def _checked(name: str, arguments: Any, key: str, call_id: str | None = None) -> ToolCall:
    if isinstance(arguments, dict):
        return ToolCall(name=name, arguments=arguments, call_id=call_id)
    problem = f'"{key}" must be a JSON object, not {type(arguments).__name__}'
    return ToolCall(name=name, problem=problem, call_id=call_id)


def _loads(text: str) -> Any:
    """Return JSON as a model wrote it, its texts storable and its numbers finite.

    Raises:
        ValueError, RecursionError: not JSON, nested more than `MAX_DEPTH` deep, or a number beyond a float's range.
    """
    return _plain(json.loads(text), MAX_DEPTH)


def _plain(value: Any, depth_left: int) -> Any:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is no number that JSON has")
    if not isinstance(value, list | dict):
        return value
    if not depth_left:
        raise ValueError(f"nested more than {MAX_DEPTH} deep")
    if isinstance(value, list):
        return [_plain(item, depth_left - 1) for item in value]
    return {storable(key): _plain(item, depth_left - 1) for key, item in value.items()}
