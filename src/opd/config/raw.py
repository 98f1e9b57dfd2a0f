"""Text from outside a file: values for a key's type, and raw Hydra overrides, which become values of the spec where it has the key."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_origin

from pydantic.fields import FieldInfo

from opd.config.base import Section
from opd.config.errors import REDACTED, Problem, SpecError, nearest
from opd.config.reader import read_scalar, read_text
from opd.config.refusals import REFUSED_VERL_KEYS, holds_secret, refused_key
from opd.config.tree import field_at, set_path, strip_optional
from opd.config.verl_keys import SPEC_PATH_OF

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


# key, optional @package, `=`, value; a deletion is `~key`
_OVERRIDE = re.compile(r"(?P<prefix>\+\+|\+|~|)(?P<key>[A-Za-z_][\w./@-]*)(?:=(?P<value>.*))?", re.DOTALL)
_GUARDED = (*SPEC_PATH_OF, *REFUSED_VERL_KEYS)
_ENVIRONMENT = "give it in the environment of the run, or by reference to a Kubernetes Secret"
_OURS = ("opd.", "run.")
"""Beginnings of keys that are ours: verl's config has none of them."""
RULE = "a raw override is Hydra's `key=value`, `+key=value`, `++key=value` or `~key`"


@dataclass(frozen=True)
class RawOverride:
    """A parsed raw override; `value` is None for `~key`."""

    prefix: str
    key: str
    value: str | None


def parse_raw(text: str) -> RawOverride | None:
    """The parts of a raw override, or None if it is none."""
    match = _OVERRIDE.fullmatch(text)
    if match is None or (match["value"] is None and match["prefix"] != "~"):
        return None
    return RawOverride(match["prefix"], match["key"], match["value"])


def fold(
    tree: dict[str, Any], cls: type[Section], texts: Iterable[Any], source: str, problems: list[Problem]
) -> list[tuple[str, str]]:
    """Apply raw overrides to the tree in order: keys the spec has become spec values, others join `overrides`.

    Returns the (spec path, source) of each that became a spec value. A later raw override of the same key replaces the
    earlier one.
    """
    existing = tree.get("overrides", [])
    if not isinstance(existing, list):
        return []  # validation reports it
    folded: list[tuple[str, str]] = []
    kept = [text for text in existing if isinstance(text, str)]
    for text in texts:
        if isinstance(text, str) and holds_secret(text):
            rule = "a secret is never written into an override"
            problems.append(Problem(path="overrides", value=REDACTED, rule=rule, fix=_ENVIRONMENT, source=source))
            continue
        if not isinstance(text, str) or (raw := parse_raw(text)) is None:
            problems.append(Problem(path="overrides", value=text, rule=RULE, fix="see `--help`", source=source))
            continue
        where = f"{source} {raw.key}".strip()
        if problem := _refusal(raw, where):
            problems.append(problem)
            continue
        path = SPEC_PATH_OF.get(raw.key, "")
        field = field_at(cls, path) if path and raw.prefix != "~" else None
        if field is None and raw.key.startswith(_OURS):
            problems.append(_no_such_key(text, raw.key, where))
            continue
        if field is None or raw.value is None:
            kept = [old for old in kept if (known := parse_raw(old)) is None or known.key != raw.key] + [text]
            continue
        folded.append((path, where))
        if raw.value == "null":
            _remove(tree, path)
        elif (value := parse_value(raw.value, field, path, where, problems)) is not None:
            set_path(tree, path, value)
    if kept:
        tree["overrides"] = kept
    return folded


def _refusal(raw: RawOverride, where: str) -> Problem | None:
    value = unquote(raw.value or "")
    shown = f"{raw.key}={value}"
    if value.startswith("{") and (hidden := next((k for k in _GUARDED if k.startswith(f"{raw.key}.")), "")):
        rule = f"a map here could set {hidden} unseen by the spec's checks"
        return Problem(path="overrides", value=shown, rule=rule, fix="write one override for each key", source=where)
    reason = refused_key(raw.key, value) if raw.prefix != "~" else ""
    if reason:
        return Problem(path="overrides", value=shown, rule=reason, fix="remove the override", source=where)
    return None


def _no_such_key(text: str, key: str, where: str) -> Problem:
    near = nearest(key, [name for name in SPEC_PATH_OF if name.startswith(_OURS) and name != key])
    fix = f"did you mean {near}?" if near else "remove the override"
    return Problem(path="overrides", value=text, rule="this kind has no such key", fix=fix, source=where)


def _remove(tree: dict[str, Any], path: str) -> None:
    *parents, last = path.split(".")
    for key in parents:
        child = tree.get(key)
        if not isinstance(child, dict):
            return
        tree = child
    tree.pop(last, None)
