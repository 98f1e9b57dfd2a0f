"""A tool: its description for a model, its arguments as a model wrote them, its replies."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from opd.text import storable

MAX_STATE_CHARS = 65536
"""It travels with every call of its conversation."""
MAX_ARGUMENT_BYTES = 65536
"""Longer arguments are refused unread: no honest call comes near, and JSON is parsed in bounded time."""
_MAX_SHOWN_CHARS = 60
_MAX_SHOWN_FAULTS = 3


class Arguments(BaseModel):
    """Base of every tool's arguments: unknown names are refused, numbers may be written as text."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Tool(NamedTuple):
    """One tool."""

    name: str
    description: str
    arguments: type[BaseModel]
    run: Callable[[Any, Any], Reply | Changed]
    """Takes the row's view of the database and an instance of `arguments`; returns what JSON can hold."""


Reply = Mapping[str, Any] | Sequence[Any]
"""A tool's answer: a JSON object or array."""


class Changed(NamedTuple):
    """A reply that changes the conversation's state (`Environment.keeps_state`)."""

    reply: Reply
    state: str
    """State for the conversation's next call; at most `MAX_STATE_CHARS`."""


class BadArguments(ValueError):
    """Arguments that a tool cannot work with; the message names argument, value, rule and, where there is one, the fix."""


class BadJson(ValueError):
    """Arguments that are not one JSON object."""


def shown(value: object) -> str:
    """A value as it may be quoted in a message: short, on one line."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MAX_SHOWN_CHARS else text[:_MAX_SHOWN_CHARS] + "…"


def render(reply: Reply) -> str:
    """A reply as the model reads it: JSON on one line, in its own script.

    No `<` survives as such: replies quote what the model wrote, and tokenizers read `<|im_end|>` or `<tool_call>` in a
    tool's text as the real control token.
    """
    return storable(json.dumps(reply, ensure_ascii=False)).replace("<", "\\u003c")


def parse_arguments(tool: Tool, arguments: str | Mapping[str, Any]) -> BaseModel:
    """The arguments, validated.

    Raises:
        BadJson: not a JSON object.
        BadArguments: an object that does not fit the tool.
    """
    if isinstance(arguments, str):
        arguments = _parsed(arguments)
    try:
        return tool.arguments.model_validate(arguments)
    except ValidationError as error:
        raise BadArguments(_faults(tool, error)) from error


def _parsed(text: str) -> dict[str, Any]:
    if len(text.encode(errors="replace")) > MAX_ARGUMENT_BYTES:
        raise BadArguments(f"the arguments have {len(text)} characters: at most {MAX_ARGUMENT_BYTES} bytes are read")
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        where = f" at character {error.pos}: {error.msg}" if isinstance(error, json.JSONDecodeError) else ": too deep"
        raise BadJson(f"the arguments are not JSON{where}; write one JSON object") from error
    except ValueError as error:  # an integer of more than 4300 digits
        raise BadJson(f"the arguments are not JSON: {error}; write one JSON object") from error
    if not isinstance(value, dict):
        raise BadJson(f"the arguments are {shown(value)}: write one JSON object")
    return value


def _faults(tool: Tool, error: ValidationError) -> str:
    """One sentence an argument: its name, what was given, the rule."""
    sentences = []
    for fault in error.errors(include_url=False, include_context=False)[:_MAX_SHOWN_FAULTS]:
        name = ".".join(str(part) for part in fault["loc"])[:_MAX_SHOWN_CHARS] or "arguments"
        if fault["type"] == "missing":
            sentences.append(f"{name} is missing")
        elif fault["type"] == "extra_forbidden":
            sentences.append(f"{name} is no argument of {tool.name}")
        else:
            rule = fault["msg"].removeprefix("Value error, ")
            sentences.append(f"{name} = {shown(fault['input'])}: {rule}")
    left = error.error_count() - len(sentences)
    if left:
        sentences.append(f"and {left} more")
    names = ", ".join(
        name if field.is_required() else f"{name} (optional)" for name, field in tool.arguments.model_fields.items()
    )
    return f"{'; '.join(sentences)}. {tool.name} takes: {names}"


def schemas_of(tools: Mapping[str, Tool]) -> list[dict[str, Any]]:
    """Return the tools in OpenAI's function format, in their order: a chat template takes them as `tools`."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": _parameters(tool.arguments),
            },
        }
        for tool in tools.values()
    ]


_KEPT_KEYS = ("type", "description", "enum", "items", "minimum", "maximum", "pattern")


def _parameters(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema()
    properties = {name: _property(spec) for name, spec in schema.get("properties", {}).items()}
    return {"type": "object", "properties": properties, "required": schema.get("required", [])}


def _property(spec: dict[str, Any]) -> dict[str, Any]:
    """A flat property: templates and parsers expect a plain `type`, so an optional one says so by not being required."""
    if "anyOf" in spec:
        options = [option for option in spec["anyOf"] if option.get("type") != "null"]
        spec = options[0] | {key: value for key, value in spec.items() if key != "anyOf"}
    kept = {key: spec[key] for key in _KEPT_KEYS if key in spec}
    if "items" in kept:
        kept["items"] = _property(kept["items"])
    return kept


ErrorClass = Literal["bad_json", "unknown_tool", "bad_arguments", "timeout", "crashed"]


class ToolCall(NamedTuple):
    """One call, as a worker gets it."""

    name: str
    arguments: str | Mapping[str, Any]
    episode_seed: int | None
    timeout_s: float
    case_id: str | None = None
    """Of an environment whose database has a part for each task."""
    state: str | None = None
    """The conversation's state, where the environment keeps one; None at the beginning."""


class WorkerReply(NamedTuple):
    """A worker's answer."""

    text: str
    error: ErrorClass | None
    fault: str | None = None
    """The tool's own exception, for the log; the model reads only that it failed."""
    state: str | None = None
    """The conversation's new state; None: as before."""


class Ready(NamedTuple):
    """A worker has imported its tools and opened the database."""


class ToolReply(NamedTuple):
    """The outcome of a call."""

    text: str
    """Text for the model, errors included."""
    error: ErrorClass | None
    """The kind of failure for metrics; None: the call succeeded."""
    seconds: float
    """From when a process took the call up to its answer, kill included."""
    queued_s: float = 0.0
    """Before that: the wait for a free process."""
    state: str | None = None
    """The conversation's new state (`Environment.keeps_state`); None: as before, as after every failure."""


def error_text(error: ErrorClass, message: str) -> str:
    """An error as the model reads it."""
    return render({"error": error, "message": message})
