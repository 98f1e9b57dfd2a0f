"""Reads tool calls out of a model's turn: every call it began is returned, the unreadable ones with what is wrong."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from opd.text import storable

MAX_DEPTH = 64
"""Lists and objects within each other in a call: no tool's arguments come near, and what later copies, pickles or prints
a call recurses."""
THOUGHT_START, THOUGHT_END = "<think>", "</think>"
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_CALL = re.compile(rf"{_OPEN}(.*?)(?:{_CLOSE}|(?={_OPEN})|\Z)", re.DOTALL)


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
    """Tokens that end a turn in this syntax beside the end-of-turn token."""

    async def parse(self, text: str, token_ids: Sequence[int]) -> list[ToolCall]:
        """Return the calls in what a turn says outside its thoughts, in their order: decoded with special tokens, and as ids."""
        ...


def without_thought(text: str, *, opened: bool) -> str:
    """Return what a turn says outside its thought, where alone a tool call is one.

    Args:
        text: the model's turn.
        opened: the turn's header, which the model did not write, already begins the thought.

    Returns:
        The text after the last end of a thought, up to a thought that is begun and not ended; "" if all is thought.
    """
    _, ended, spoken = text.rpartition(THOUGHT_END)
    if opened and not ended:
        return ""
    return spoken.partition(THOUGHT_START)[0]


class HermesParser:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

    verl's own parser of this syntax drops what it cannot read, so that the model waits for a reply that never comes.
    """

    stop_token_ids: Sequence[int] = ()

    async def parse(self, text: str, token_ids: Sequence[int]) -> list[ToolCall]:
        return [_read(match) for match in _CALL.finditer(text)]


def _read(match: re.Match[str]) -> ToolCall:
    if not match[0].endswith(_CLOSE):
        return ToolCall(problem="the call is not closed by its end tag")
    try:
        value = _loads(match[1])
    except (ValueError, RecursionError) as error:
        return ToolCall(problem=f"the call is not valid JSON ({error})")
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return ToolCall(problem='the call must be a JSON object with the keys "name" and "arguments"')
    return _checked(value["name"], value.get("arguments", {}))


def call_from_parts(name: str, arguments: str, call_id: str | None) -> ToolCall:
    """Return a call whose arguments came as JSON text, as verl's parsers hand them out."""
    try:
        return _checked(name, _loads(arguments), call_id)
    except (ValueError, RecursionError) as error:
        return ToolCall(name=name, problem=f"the arguments are not valid JSON ({error})", call_id=call_id)


def _checked(name: str, arguments: Any, call_id: str | None = None) -> ToolCall:
    if isinstance(arguments, dict):
        return ToolCall(name=name, arguments=arguments, call_id=call_id)
    problem = f'"arguments" must be a JSON object, not {type(arguments).__name__}'
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
