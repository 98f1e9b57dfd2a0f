"""A tool: its description for a model, its arguments as a model wrote them, its replies."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from opd.text import storable

_MAX_SHOWN_CHARS = 60
_MAX_SHOWN_FAULTS = 3  # of those that pydantic names


class Arguments(BaseModel):
    """Base of every tool's arguments; it rejects unknown names and reads numbers written as text."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Tool(NamedTuple):
    """One tool."""

    name: str
    description: str
    arguments: type[BaseModel]
    run: "Callable[[Any, Any], Reply]"
    """Takes the row's view of the database and an instance of `arguments`; returns what JSON can hold."""
    parameters: Mapping[str, Any] | None = None
    """JSON schema of the arguments, as the model reads it; None means the schema of `arguments`."""


Reply = Mapping[str, Any] | Sequence[Any]
"""A tool's answer: a JSON object or array."""


class ToolReply(NamedTuple):
    """The outcome of a call."""

    text: str
    """Text for the model, errors included."""
    error: str | None = None
    """The kind of failure; None means success."""
    seconds: float = 0.0
    """Time of the call in its process, kill included."""
    fault: str | None = None
    """The tool's own exception, for the log; the model reads only that it failed."""


class BadArguments(ValueError):
    """Arguments that do not fit a tool; the message names argument, value, rule and, where there is one, the fix."""


def shown(value: object) -> str:
    """Return a value as a message may quote it: short, on one line."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MAX_SHOWN_CHARS else text[:_MAX_SHOWN_CHARS] + "…"


def render(reply: Reply) -> str:
    """Return a reply as the model reads it: JSON on one line, in its own script.

    No `<` survives as such: replies quote what the model wrote, and tokenizers read `<|im_end|>` or `<tool_call>` in a
    tool's text as the real control token.
    """
    return storable(json.dumps(reply, ensure_ascii=False)).replace("<", "\\u003c")


def parse_arguments(tool: Tool, arguments: Mapping[str, Any]) -> BaseModel:
    """Return the validated arguments.

    Raises:
        BadArguments: they do not fit the tool.
    """
    try:
        return tool.arguments.model_validate(arguments)
    except ValidationError as error:
        raise BadArguments(_faults(tool, error)) from error


def _faults(tool: Tool, error: ValidationError) -> str:
    """Return a sentence for each argument: its name, its value, the rule."""
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
    names = ", ".join(
        name if field.is_required() else f"{name} (optional)" for name, field in tool.arguments.model_fields.items()
    )
    return f"{'; '.join(sentences)}. {tool.name} takes: {names}"


def schema_of(tool: Tool) -> dict[str, Any]:
    """Return the tool in OpenAI's function format, as a chat template takes it."""
    model = tool.arguments.model_json_schema()
    parameters = tool.parameters or {
        "type": "object",
        "properties": {name: _property(spec) for name, spec in model.get("properties", {}).items()},
        "required": model.get("required", []),
    }
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


_KEPT_KEYS = ("type", "description", "enum", "items", "minimum", "maximum", "pattern")


def _property(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a flat property: templates and parsers expect a plain `type`; an optional property is not `required`."""
    if "anyOf" in spec:
        options = [option for option in spec["anyOf"] if option.get("type") != "null"]
        spec = options[0] | {key: value for key, value in spec.items() if key != "anyOf"}
    kept = {key: spec[key] for key in _KEPT_KEYS if key in spec}
    if "items" in kept:
        kept["items"] = _property(kept["items"])
    return kept
