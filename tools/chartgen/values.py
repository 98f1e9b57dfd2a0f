"""The text of values.yaml (every key with its description, defaults written out, the rest as comments) and the layout of schemas."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from chartgen.chart import LIBRARY, Chart
from opd.config.keys import shape

WIDTH = 120


def layout(node: Any, indent: str = "") -> str:
    """JSON text: what a single key takes is a line; sections, and other maps and lists of maps that fit none, are opened."""
    flat = json.dumps(node)
    is_line = len(indent + flat) <= WIDTH or (isinstance(node, dict) and "description" in node)
    if '"properties": {' not in flat and is_line:
        return flat
    below = indent + " "
    if isinstance(node, dict):
        return _opened("{}", (f"{json.dumps(key)}: {layout(value, below)}" for key, value in node.items()), indent)
    if isinstance(node, list) and any(isinstance(item, dict) for item in node):
        return _opened("[]", (layout(item, below) for item in node), indent)
    return flat


def _opened(brackets: str, items: Iterable[str], indent: str) -> str:
    lines = ",\n".join(f"{indent} {item}" for item in items)
    return f"{brackets[0]}\n{lines}\n{indent}{brackets[1]}"


HIDDEN = (LIBRARY, "global", "matrix")
TEXT_WIDTH = 118
HEADER = """\
# Values of the chart `{kind}`: an experiment file, read by Helm, by opdctl and by the trainer alike.
# Generated from opd.config by `make schema`: do not edit. Keys without a value here are left out unless you give them.
"""


def values_yaml(chart: Chart) -> str:
    """The file's text."""
    return HEADER.format(kind=chart.kind) + "\n".join(_lines(chart.schema, chart.defaults, "")) + "\n"


def _lines(schema: dict[str, Any], defaults: dict[str, Any], indent: str) -> Iterator[str]:
    required = set(schema.get("required", ()))
    for name, node in schema["properties"].items():
        if not indent and name in HIDDEN:
            continue
        if not indent:
            yield ""
        yield from comment(node.get("description", ""), indent)
        if name in defaults and "properties" in node:
            yield f"{indent}{name}:" if defaults[name] else f"{indent}{name}: {{}}"  # comments alone would be a null
            yield from _lines(node, defaults[name], indent + "  ")
        elif name in defaults:
            yield f"{indent}{name}: {json.dumps(defaults[name])}"
        elif "properties" in node:
            block = [f"{indent}{name}:", *_lines(node, {}, indent + "  ")]
            yield from (f"{indent}# {line[len(indent) :]}" if line else line for line in block)
        else:
            yield f"{indent}# {name}: {shape(node)}{', required' if name in required else ''}"


def comment(text: str, indent: str) -> list[str]:
    """`# -- text`, wrapped."""
    wrapped = textwrap.wrap(text, TEXT_WIDTH - len(indent) - 5, break_long_words=False, break_on_hyphens=False)
    return [f"{indent}# {'-- ' if number == 0 else '   '}{line}" for number, line in enumerate(wrapped)]
