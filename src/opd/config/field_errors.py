"""Says what is wrong with one field, and what to write instead, by the type of pydantic's error: of the spec and of `cluster` alike."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from opd.config.base import MAX_NAME_CHARS, Section, joined
from opd.config.defaults import DEFAULTS
from opd.config.errors import Problem, nearest, show
from opd.config.reader import truth_of
from opd.config.refusals import redact
from opd.config.tree import item_section, section_of, strip_optional

NAME_RULE = (
    f"a name is DNS-1035: lower-case letters, digits and `-`, starts with a letter, at most {MAX_NAME_CHARS} characters"
)
WORDS = {"gpu": "cuda"}
"""Values people bring from elsewhere, and what they are called here."""
_BOUNDS = {"greater_than_equal": ">=", "greater_than": ">", "less_than_equal": "<=", "less_than": "<"}
_KEY = "[key]"  # pydantic's mark of an error in a map's key
_BYTES = re.compile(r"([0-9.]+)\s*([KMGTP])i?B?", re.IGNORECASE)


def by_path(error: ValidationError, tree: Any) -> Iterator[tuple[str, list[Any]]]:
    """pydantic's errors under the dotted paths of their keys; those of a union's branches are together, without its tags."""
    found: dict[tuple[str, bool], list[Any]] = {}
    for item in error.errors(include_url=False, include_context=True):
        node, parts = tree, []
        for depth, part in enumerate(item["loc"], start=1):
            if part in node if isinstance(node, dict) else isinstance(node, list) and part in range(len(node)):
                node = node[part]
            elif item["type"] != "missing" or depth < len(item["loc"]):
                continue
            parts.append(str(part))
        found.setdefault((".".join(parts), _KEY in item["loc"]), []).append(item)
    for (path, _), items in found.items():
        yield path, items


def field_problem(path: str, items: Sequence[Any], field: FieldInfo | None, words: Mapping[str, str]) -> Problem:
    """One problem of a field.

    Args:
        items: pydantic's error, or one of each branch of a union.
        words: what a pattern asks for.
    """
    about = (field.description if field is not None else None) or ""
    if items[0]["type"] == "missing":
        return Problem(path=path, rule="the key is required", fix=f"set {path}", about=about)
    key = path.rpartition(".")[2]
    value = redact({key: items[0]["input"]})[key]
    rules = [_rule(item, words) for item in items]
    rule = " or ".join([rules[0], *(other.removeprefix("input should be ") for other in rules[1:])])
    if path == "name":
        rule = NAME_RULE
    return Problem(path=path, value=value, rule=rule, fix=_fix(path, value, items, field), about=about)


def _rule(item: Any, words: Mapping[str, str]) -> str:
    message = item["msg"].removeprefix("Value error, ")
    told = words.get(item["ctx"]["pattern"]) if item["type"] == "string_pattern_mismatch" else None
    return f"input should be {told}" if told else message[:1].lower() + message[1:]


def _fix(path: str, value: Any, items: Sequence[Any], field: FieldInfo | None) -> str:
    """What is made of the value itself, by the first branch that can; else what every branch asks for."""
    for item in items:
        if fix := _made_of(path, value, item, field):
            return fix
    asked = [text for item in items if (text := _asked(item, field))]
    return f"write {', or '.join(asked)}" if asked else ""


def _made_of(path: str, value: Any, item: Any, field: FieldInfo | None) -> str:
    kind = item["type"]
    if kind in _BOUNDS:
        return f"write a number {_BOUNDS[kind]} {next(iter(item['ctx'].values())):.15g}"
    if kind == "string_type" and isinstance(value, bool | int | float):
        return f'quote it: "{show(value)}"'
    if kind.endswith(("model_type", "tuple_type")) and field is not None:
        return _written_out(path, value, field)
    if not isinstance(value, str):
        return ""
    if kind == "literal_error":
        near = nearest(WORDS.get(value.lower(), value), _options(item))
        return f"did you mean {near}?" if near else ""
    if kind == "bool_type":
        word = truth_of(value) or (value.lower() if value.lower() in ("true", "false") else "")
        return f"write {word}, without quotes" if word else ""
    if kind in ("int_type", "float_type") and re.fullmatch(
        r"-?[0-9]+" if kind == "int_type" else r"-?[0-9.]+(e-?[0-9]+)?", value
    ):
        return f"write {value}, without quotes"
    if not value:
        return "write a value, or leave the key out"
    if kind == "string_pattern_mismatch":
        return _near_pattern(value, item["ctx"]["pattern"], field)
    if kind == "string_too_long":
        return f"did you mean {joined([value])}?" if path == "name" else ""
    return ""


def _asked(item: Any, field: FieldInfo | None) -> str:
    kind = item["type"]
    if kind == "literal_error":
        return str(item["ctx"]["expected"])
    if kind == "bool_type":
        return "true or false"
    if kind.startswith(("int_", "float_")):
        return "a whole number" if kind.startswith("int_") else "a number"
    if kind == "string_type":
        return "a text"
    if kind == "dict_type":
        return "a map, {KEY: VALUE}"
    if kind == "too_short":
        return f"a list of at least {item['ctx']['min_length']}"
    if kind == "string_too_long":
        return f"at most {item['ctx']['max_length']} characters"
    if field is not None and (field.examples or isinstance(field.default, str)):
        return f"one like {show(field.examples[0] if field.examples else field.default)}"
    return "a text of that form" if kind == "string_pattern_mismatch" else ""


def _options(item: Any) -> list[str]:
    return [word.strip("'") for word in item["ctx"]["expected"].replace(" or ", ", ").split(", ")]


def _written_out(path: str, value: Any, field: FieldInfo) -> str:
    """A value where a section or a list belongs, as it is written in one."""
    key = path.rpartition(".")[2]
    label = "" if key.isdigit() else f"{key}: "
    text = value if isinstance(value, str) else show(value)
    if section := section_of(field):
        inside = _in_section(path, text, section) if isinstance(value, str) else ""
        names = ", ".join(f"{path}.{name}" for name in _names(section))
        return f"write `{label}{inside}`" if inside else f"set its keys one by one: {names}"
    inner, item = item_section(field, "0"), get_args(strip_optional(field.annotation))[0]
    if isinstance(value, str) and inner is not None:
        text = _in_section(path, text, inner) or "{...}"
    elif isinstance(value, str):
        text = "{...}" if get_origin(item) is dict else ", ".join(part.strip() for part in text.split(","))
    return f"write `{label}[{text}]`"


def _in_section(path: str, text: str, section: type[Section]) -> str:
    """The section with a text under the first key that it needs; empty where that takes no text."""
    above = path.rpartition(".")[2]
    computed = {default.path for default in DEFAULTS}
    required = [(name, field) for name, field in _names(section).items() if field.is_required()]
    needed = [(name, field) for name, field in required if f"{above}.{name}" not in computed] or required[:1]
    if not needed or strip_optional(needed[0][1].annotation) is not str:
        return ""
    return f"{{{', '.join([f'{needed[0][0]}: {text}', *(f'{name}: ...' for name, _ in needed[1:])])}}}"


def _names(section: type[Section]) -> dict[str, FieldInfo]:
    """The section's fields, as a file spells them."""
    return {field.alias or name: field for name, field in section.model_fields.items()}


def _near_pattern(text: str, pattern: str, field: FieldInfo | None) -> str:
    def fits(*found: str) -> list[str]:
        return [one for one in found if re.search(pattern, one)]

    if match := _BYTES.fullmatch(text):
        unit = match[2].upper()
        if found := fits(f"{match[1]}{unit}i", f"{match[1]}{unit}"):
            return f"write {' or '.join(found)}"
    bare = text.strip("/ ")
    found = fits(bare, f"http://{bare}", f"/{bare}")
    if not found and (field is None or not field.examples):
        name = joined([text])
        found = fits(name, f"run-{name}", name.replace("-", "_"))
    return f"did you mean {found[0]}?" if found else ""
