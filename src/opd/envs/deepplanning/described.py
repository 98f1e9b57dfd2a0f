"""A published tool with what it says of itself: the same arguments, described in one language or the other."""

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, NamedTuple

from pydantic import create_model

from opd.agent.toolset import Arguments, Changed, Reply, Tool


class Description(NamedTuple):
    """Of a tool and its arguments, by name."""

    tool: str
    arguments: Mapping[str, str]


def described_tool(
    name: str, words: Description, arguments: type[Arguments], run: Callable[[Any, Any], Reply | Changed]
) -> Tool:
    """The tool with a description of its own and of each argument."""
    fields: dict[str, Any] = {}
    for argument, field in arguments.model_fields.items():
        field = copy(field)
        field.description = words.arguments[argument]
        fields[argument] = (field.annotation, field)
    described: type[Arguments] = create_model(arguments.__name__, __base__=arguments, **fields)
    return Tool(name, words.tool, described, run)
