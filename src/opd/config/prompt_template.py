"""A text with `{NAME}` in it, from which each row's own prompt of a teacher is made: `teacher.prompt`."""

from __future__ import annotations

from collections.abc import Callable
from string import Formatter

PROMPT = "prompt"
"""The name of the row's last user message; every other one is a column, or `COLUMN.FIELD`."""


def _parts(template: str) -> list[tuple[str, str | None]]:
    """(text, the name behind it or None) of each part.

    Raises:
        ValueError: a brace that is alone, or holds something else than a name.
    """
    out = []
    try:
        for text, name, spec, conversion in Formatter().parse(template):
            if name is not None and (not name.strip() or spec or conversion or set("[]{}") & set(name)):
                raise ValueError(f"{{{name}}} is no name")
            out.append((text, name))
    except ValueError as error:
        raise ValueError(
            f"braces hold {{{PROMPT}}} or the name of a column, and a brace that is text is written twice ({{{{ }}}}): {error}"
        ) from error
    return out


def column_names(template: str) -> list[str]:
    """The columns that a template reads, each once, in their order.

    Raises:
        ValueError: it is no template; says why.
    """
    return list(dict.fromkeys(name for _, name in _parts(template) if name is not None and name != PROMPT))


def has_names(template: str) -> bool:
    """Return True for a template that differs between rows."""
    return any(name is not None for _, name in _parts(template))


def checked(template: str) -> str:
    """The template as it is; `ValueError` where it is none."""
    _parts(template)
    return template


def filled(template: str, value_of: Callable[[str], str]) -> str:
    """The text with a value in the place of each name; braces in a value are text."""
    return "".join(text + ("" if name is None else value_of(name)) for text, name in _parts(template))
