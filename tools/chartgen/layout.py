"""Lays out generated JSON for people: one key a line, opened only where keys lie in keys."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

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
