"""Turns text from outside a file (environment, --set, Hydra overrides) into a value of the key's type."""

from __future__ import annotations

import re
from typing import Any, Literal, get_origin

from pydantic.fields import FieldInfo

from opd.config.errors import Problem, SpecError
from opd.config.reader import read_scalar, read_text
from opd.config.tree import strip_optional

_BRACED = re.compile(r"\{((?:(?!: )[^{}])*)\}")  # a list as Helm's --set has it, no map
_TRUE = {"true", "1", "yes"}
_FALSE = {"false", "0", "no"}


def parse_value(text: str, field: FieldInfo, path: str, source: str, problems: list[Problem]) -> Any:
    """The value `text` means for `field`; appends a Problem and returns None where it means none."""
    kind = strip_optional(field.annotation)
    if kind is str or get_origin(kind) is Literal:
        return unquote(text)
    if kind is bool:
        return _boolean(text, path, source, problems)
    if kind in (int, float):
        found: list[Problem] = []
        value = read_scalar(text.strip(), path, found, source)
        if found or isinstance(value, bool | str):
            rule = f"{'a whole number' if kind is int else 'a number'} is needed"
            problems.append(Problem(path=path, value=text, rule=rule, fix="write a plain decimal", source=source))
            return None
        return value
    if get_origin(kind) is tuple and (braced := _BRACED.fullmatch(text.strip())):
        fix = f"[{', '.join(part.strip() for part in braced[1].split(','))}]"
        problems.append(Problem(path=path, value=text, rule="a list is written in [ ]", fix=fix, source=source))
        return None
    return _flow(text, path, source, problems)


def unquote(text: str) -> str:
    """Text without one pair of surrounding quotes."""
    return text[1:-1] if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"" else text


def _boolean(text: str, path: str, source: str, problems: list[Problem]) -> bool | None:
    word = text.strip().lower()
    if word in _TRUE | _FALSE:
        return word in _TRUE
    problems.append(
        Problem(path=path, value=text, rule="a truth value is needed", fix="use true or false", source=source)
    )
    return None


def _flow(text: str, path: str, source: str, problems: list[Problem]) -> Any:
    """Lists and maps in YAML flow style, `[a, b]`; a bare word stays a string."""
    try:
        return read_text(f"value: {text}", origin=path).tree["value"]
    except SpecError as error:
        problems += [
            Problem(path=path, value=text, rule=p.rule, fix=p.fix or "quote the value", source=source)
            for p in error.problems
        ]
        return None
