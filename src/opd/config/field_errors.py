"""Says what is wrong with one field, and what to write instead, from pydantic's errors: of the spec and of `cluster` alike."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from opd.config.base import ENV_PATTERN, KEY_PATTERN, MAX_NAME_CHARS, Section, joined
from opd.config.errors import Problem, nearest, show
from opd.config.reader import truth_of
from opd.config.refusals import redact, refused_key
from opd.config.tree import field_at, item_section, leaf_paths, names_of, section_of, strip_optional

ENV_NAME = ENV_PATTERN
QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|[MGTP]|[KMGTP]i)?$"
OBJECT_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
ABSOLUTE_PATH = r"^/[^:]*[^:/]$"
PATTERN_WORDS = {
    KEY_PATTERN: "a name of letters, digits, `_` and `-`, a letter or `_` first",
    ENV_NAME: "a variable's name: letters, digits and `_`, no digit first",
    QUANTITY: "a quantity of Kubernetes: a number, alone or with m, k, M, G, T, P, Ki, Mi, Gi, Ti or Pi",
    OBJECT_NAME: "a name in Kubernetes: lower-case letters, digits, `-` and `.`, a letter or digit at both ends",
    LABEL_VALUE: "a label's value: letters, digits, `-`, `_` and `.`, a letter or digit at both ends",
    ABSOLUTE_PATH: "an absolute path, from `/` on, without `:` and without `/` at its end",
}
NAME_RULE = (
    f"a name is DNS-1035: lower-case letters, digits and `-`, starts with a letter, at most {MAX_NAME_CHARS} characters"
)
# Names and values people bring from verl or from other trainers, and what they are called here.
ALIASES = {
    "n": "num_samples",
    "lr": "learning_rate",
    "gpus": "gpus_per_node",
    "n_gpus_per_node": "gpus_per_node",
    "tensor_model_parallel_size": "tensor_parallel_size",
    "val_kwargs": "val",
    "logger": "loggers",
    "epochs": "total_epochs",
    "total_training_steps": "total_steps",
    "train_files": "train",
    "val_files": "val",
}
_WORDS = {"gpu": "cuda"}
_BOUNDS = {"greater_than_equal": ">=", "greater_than": ">", "less_than_equal": "<=", "less_than": "<"}
_ASKED = {"bool_type": "true or false", "string_type": "a text", "dict_type": "a map, {KEY: VALUE}"}
_BYTES = re.compile(r"([0-9.]+)\s*([KMGTP])i?B?", re.IGNORECASE)


def field_problems(
    error: ValidationError, tree: Any, cls: type[Section], *, above: str = "", unresolved: Collection[str] = ()
) -> list[Problem]:
    """Return pydantic's errors in our words.

    Args:
        above: path of the section, where it is part of a file.
        unresolved: keys whose defaults follow from keys that are wrong or missing; reported only if nothing else is.
    """
    out, follow_ups = [], []
    found = list(_by_path(error, tree))
    for path, items in found:
        if items[0]["type"] == "too_short" and any(other.startswith(f"{path}.") for other, _ in found):
            continue  # pydantic counts a list's valid items: the invalid ones are reported themselves
        if items[0]["type"] == "missing" and any(f"{name}.".startswith(f"{path}.") for name in unresolved):
            follow_ups.append(Problem(path=path, rule="its default follows from keys that are wrong or missing"))
        elif items[0]["type"] == "extra_forbidden":
            out.append(unknown_key(path, items[0]["input"], cls, above=above))
        else:
            out.append(_problem(path, items, field_at(cls, path), above))
    return out or follow_ups


def unknown_key(path: str, value: object, cls: type[Section], source: str = "", *, above: str = "") -> Problem:
    """Return a problem for a key that does not exist, with the nearest one; a section takes no value either."""
    parent, _, name = path.rpartition(".")
    value, field = redact({name: value})[name], field_at(cls, path)
    if field is not None and (inner := section_of(field)):
        rule = "it is a section of keys, not a key"
        return Problem(path=path, value=value, rule=rule, fix=_one_by_one(path, inner), source=source)
    if reason := refused_key(path, value):
        return Problem(path=path, value=value, rule=reason, fix="remove the key", source=source)
    parent_field = field_at(cls, parent) if parent else None
    names = list(names_of((section_of(parent_field) if parent_field else None) or cls))
    alias = ALIASES.get(name, "")
    here = alias if alias in names else nearest(name, names)
    elsewhere = [p for p, _ in leaf_paths(cls) if p.rpartition(".")[2] in {name, alias}]
    at = ".".join(filter(None, (above, parent)))
    if alias not in names and name not in names and elsewhere:
        near = " or ".join(elsewhere[:3])
    else:
        near = ".".join(filter(None, (at, here))) if here else ""
    kind = cls.model_fields.get("kind")
    rule = f"there is no such key in kind {get_args(kind.annotation)[0]}" if kind else "there is no such key"
    fix = f"did you mean {near}?" if near else f"keys here: {', '.join(names)}"
    return Problem(path=path, value=value, rule=rule, fix=fix, source=source)


def _by_path(error: ValidationError, tree: Any) -> Iterator[tuple[str, list[Any]]]:
    """Yield pydantic's errors under the dotted paths of their keys; the branches of a union are together, without tags."""
    found: dict[tuple[str, bool], list[Any]] = {}
    for item in error.errors(include_url=False, include_context=True):
        node, parts = tree, []
        for depth, part in enumerate(item["loc"], start=1):
            if part in node if isinstance(node, dict) else isinstance(node, list) and part in range(len(node)):
                node = node[part]
            elif item["type"] != "missing" or depth < len(item["loc"]):
                continue
            parts.append(str(part))
        found.setdefault((".".join(parts), "[key]" in item["loc"]), []).append(item)
    for (path, _), items in found.items():
        yield path, items


def _problem(path: str, items: Sequence[Any], field: FieldInfo | None, above: str) -> Problem:
    """Return one problem of a field, from pydantic's error or from one of each branch of a union."""
    about = (field.description if field is not None else None) or ""
    full = f"{above}.{path}" if above else path
    if items[0]["type"] == "missing":
        return Problem(path=path, rule="the key is required", fix=f"set {full}", about=about)
    name = path.rpartition(".")[2]
    value = redact({name: items[0]["input"]})[name]
    rules = [_rule(item) for item in items]
    rule = " or ".join([rules[0], *(other.removeprefix("input should be ") for other in rules[1:])])
    made = next((fix for item in items if (fix := _made_of(full, value, item, field))), "")
    asked = [text for item in items if (text := _asked(item, field))]
    fix = made or (f"write {', or '.join(asked)}" if asked else "")
    return Problem(path=path, value=value, rule=NAME_RULE if path == "name" else rule, fix=fix, about=about)


def _rule(item: Any) -> str:
    if item["type"] == "string_pattern_mismatch" and (words := PATTERN_WORDS.get(item["ctx"]["pattern"])):
        return f"input should be {words}"
    message = str(item["msg"]).removeprefix("Value error, ")
    return message[:1].lower() + message[1:]


def _made_of(path: str, value: Any, item: Any, field: FieldInfo | None) -> str:
    """Return a fix that is made of the value itself; empty where none can be."""
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
        words = [word.strip("'") for word in item["ctx"]["expected"].replace(" or ", ", ").split(", ")]
        near = nearest(_WORDS.get(value.lower(), value), words)
        return f"did you mean {near}?" if near else ""
    if kind == "bool_type":
        word = truth_of(value) or (value.lower() if value.lower() in ("true", "false") else "")
        return f"write {word}, without quotes" if word else ""
    if kind in ("int_type", "float_type"):
        is_number = re.fullmatch(r"-?[0-9]+" if kind == "int_type" else r"-?[0-9.]+(e-?[0-9]+)?", value)
        return f"write {value}, without quotes" if is_number else ""
    if not value:
        return "write a value, or leave the key out"
    return _near_pattern(value, item["ctx"]["pattern"], field) if kind == "string_pattern_mismatch" else ""


def _asked(item: Any, field: FieldInfo | None) -> str:
    """Return what a branch asks for."""
    kind, context = item["type"], item.get("ctx", {})
    if kind == "literal_error":
        return str(context["expected"])
    if kind.startswith(("int_", "float_")):
        return "a whole number" if kind.startswith("int_") else "a number"
    if kind == "too_short":
        return f"a list of at least {context['min_length']}"
    if kind == "string_too_long":
        return f"at most {context['max_length']} characters"
    if kind in _ASKED:
        return _ASKED[kind]
    if field is not None and (field.examples or isinstance(field.default, str)):
        return f"one like {show(field.examples[0] if field.examples else field.default)}"
    return "a text of that form" if kind == "string_pattern_mismatch" else ""


def _one_by_one(path: str, section: type[Section]) -> str:
    return f"set its keys one by one: {', '.join(f'{path}.{name}' for name in names_of(section))}"


def _written_out(path: str, value: Any, field: FieldInfo) -> str:
    """Return a value where a section or a list belongs, as it is written in one."""
    name = path.rpartition(".")[2]
    label = "" if name.isdigit() else f"{name}: "
    text = value if isinstance(value, str) else show(value)
    if section := section_of(field):
        inside = _in_section(text, section) if isinstance(value, str) else ""
        return f"write `{label}{inside}`" if inside else _one_by_one(path, section)
    inner, item = item_section(field, "0"), get_args(strip_optional(field.annotation))[0]
    if isinstance(value, str) and (inner is not None or get_origin(item) is dict):
        text = (_in_section(text, inner) if inner else "") or "{...}"
    elif isinstance(value, str):
        text = ", ".join(part.strip() for part in text.split(","))
    return f"write `{label}[{text}]`"


def _in_section(text: str, section: type[Section]) -> str:
    """Return the section with a text under the first key that it needs; empty where that takes no text."""
    needed = [name for name, field in names_of(section).items() if field.is_required()]
    if not needed or strip_optional(names_of(section)[needed[0]].annotation) is not str:
        return ""
    return f"{{{', '.join([f'{needed[0]}: {text}', *(f'{name}: ...' for name in needed[1:])])}}}"


def _near_pattern(text: str, pattern: str, field: FieldInfo | None) -> str:
    found: list[str] = []
    if match := _BYTES.fullmatch(text):
        unit = match[2].upper()
        found = [size for size in (f"{match[1]}{unit}i", f"{match[1]}{unit}") if re.search(pattern, size)]
    if found:
        return f"write {' or '.join(found)}"
    bare, name = text.strip("/ "), joined([text])
    tries = [bare, f"http://{bare}", f"/{bare}"]
    if field is None or not field.examples:
        tries += [name, f"run-{name}", name.replace("-", "_")]
    near = next((one for one in tries if re.search(pattern, one)), "")
    return f"did you mean {near}?" if near else ""
