"""Messages in their one form for chat templates, and the seeded part of a data set that a conversation is in."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from opd.experiment.kinds import canonical_json

ROLES = ("system", "developer", "user", "assistant", "tool")
_ASKS = ("system", "user")


def plain(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages as every chat template reads them.

    Null keys are left out, parts of text become one text, and arguments of tool calls in JSON text become objects.

    Raises:
        ValueError: a content, or a part of it, that is not text.
    """
    return [_plain_message(without_nulls(message)) for message in messages]


def _plain_message(message: dict[str, Any]) -> dict[str, Any]:
    content = message.setdefault("content", "")
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
        if other := [part for part, text in zip(content, texts, strict=True) if not isinstance(text, str)]:
            kind = other[0].get("type") if isinstance(other[0], Mapping) else type(other[0]).__name__
            raise ValueError(f"a message has a part of the type {kind!r}; only text is read")
        message["content"] = content = "".join(map(str, texts))
    if not isinstance(content, str):
        raise ValueError(f"a message has a content of the type {type(content).__name__}; only text is read")
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function", call) if isinstance(call, dict) else {}
        if isinstance(text := function.get("arguments"), str):
            with suppress(ValueError):
                value = json.loads(text)
                function["arguments"] = value if isinstance(value, dict) else text
    return message


def with_text_arguments(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with the arguments of tool calls as JSON text."""
    copied: list[dict[str, Any]] = json.loads(json.dumps(messages))
    for call in (call for message in copied for call in message.get("tool_calls") or ()):
        function = call.get("function", call)
        if isinstance(function.get("arguments"), dict):
            function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
    return copied


def without_nulls(value: Any) -> Any:
    """Return a value without the keys that only other rows have, which Parquet fills with nulls."""
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def part_of(messages: Sequence[Mapping[str, Any]], *, of: int, seed: int) -> int:
    """Return the part, from 1 to `of`, that a prompt or a conversation belongs to.

    It follows from the texts of system and user. A prompt and every conversation that only answers it are in one part,
    and so is a problem that several files hold. Parts are about equally large, not exactly.
    """
    asked = [[one["role"], without_nulls(one.get("content"))] for one in messages if one["role"] in _ASKS]
    digest = hashlib.sha256(f"{seed}:{canonical_json(asked)}".encode()).digest()
    return int.from_bytes(digest[:8]) % of + 1
