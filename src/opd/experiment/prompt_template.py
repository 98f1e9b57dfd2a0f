"""Template of a teacher's own prompt (`teacher.prompt`): a text with `{NAME}` in it, filled in for each row."""

from __future__ import annotations

from collections.abc import Callable
from string import Formatter

PROMPT = "prompt"  # the row's last user message; every other name is a column, or `COLUMN.FIELD`


def _parts(template: str) -> list[tuple[str, str | None]]:
    """Return (text, the name after it or None) of each part; ValueError for a brace that holds no name."""
    try:
        parts = list(Formatter().parse(template))
    except ValueError:
        parts = [("", "", "", "")]
    named = [part[1:] for part in parts if part[1] is not None]
    if any(not name.strip() or more or how or set("[]{}") & {*name} for name, more, how in named if name is not None):
        words = f"braces hold {{{PROMPT}}} or the name of a column, and a brace that is text is written twice"
        raise ValueError(f"{words} ({{{{ }}}})")
    return [(text, name) for text, name, *_ in parts]


def names_in(template: str) -> list[str]:
    """Return the names in a template, each once, in their order; ValueError for a text that is no template."""
    return list(dict.fromkeys(name for _, name in _parts(template) if name is not None))


def checked(template: str) -> str:
    """Return the template as it is; ValueError for a text that is none."""
    _parts(template)
    return template


def filled(template: str, value_of: Callable[[str], str]) -> str:
    """Return the text with a value in the place of each name; braces in a value are text."""
    return "".join(text + ("" if name is None else value_of(name)) for text, name in _parts(template))
