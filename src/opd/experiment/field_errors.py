"""Problems of single fields, from pydantic's errors: the rule in words, and the text to write instead."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any, get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from opd.experiment.base import MAX_NAME_CHARS, PATTERN_WORDS, Section, joined
from opd.experiment.errors import Problem, nearest, show
from opd.experiment.reader import truth_of
from opd.experiment.refusals import redact, refused_key
from opd.experiment.tree import field_at, leaf_paths, names_of, section_of, strip_optional

NAME_RULE = (
    f"a name is DNS-1035: lower-case letters, digits and `-`, starts with a letter, at most {MAX_NAME_CHARS} characters"
)
# Names and values people bring from verl or from other trainers, and what they are called here.
_ALIASES = (
    "n:num_samples lr:learning_rate gpus:gpus_per_node n_gpus_per_node:gpus_per_node val_kwargs:val logger:loggers "
    "tensor_model_parallel_size:tensor_parallel_size epochs:total_epochs total_training_steps:total_steps "
    "train_files:train val_files:val"
)
ALIASES: dict[str, str] = dict(pair.split(":") for pair in _ALIASES.split())
_WORDS = {"gpu": "cuda"}
_BOUNDS = {"greater_than_equal": ">=", "greater_than": ">", "less_than_equal": "<=", "less_than": "<"}
_ASKED = {
    "bool_type": "true or false",
    "string_type": "a text",
    "dict_type": "a map, {{KEY: VALUE}}",
    "tuple_type": "a list, [ITEM, ITEM]",
    "too_short": "a list of at least {min_length}",
    "string_too_long": "at most {max_length} characters",
    "literal_error": "{expected}",
    "string_pattern_mismatch": "a text of that form",
    **dict.fromkeys(("int_type", "int_from_float"), "a whole number"),
    "float_type": "a number",
}
_NUMBERS = {"int_type": r"-?[0-9]+", "float_type": r"-?[0-9.]+(e-?[0-9]+)?"}


def field_problems(
    error: ValidationError, tree: Any, cls: type[Section], *, above: str = "", unresolved: Collection[str] = ()
) -> list[Problem]:
    """Return pydantic's errors of a section, which may have a path `above` it, in our words.

    Keys in `unresolved`, whose defaults follow from keys that are wrong or missing, count only if nothing else is wrong.
    """
    out, follow_ups = [], []
    found = _by_path(error, tree)
    for path, items in found.items():
        kind = items[0]["type"]
        if kind == "too_short" and any(other.startswith(f"{path}.") for other in found):
            continue  # pydantic counts a list's valid items: the invalid ones are reported themselves
        if kind == "missing" and any(f"{name}.".startswith(f"{path}.") for name in unresolved):
            follow_ups.append(Problem(path=path, rule="its default follows from keys that are wrong or missing"))
        elif kind == "extra_forbidden":
            out.append(unknown_key(path, items[0]["input"], cls, above=above))
        else:
            out.append(_problem(path, items, field_at(cls, path), above))
    return out or follow_ups


def unknown_key(path: str, value: object, cls: type[Section], *, above: str = "") -> Problem:
    """Return a problem for a key that does not exist, with the nearest one; a section takes no value either."""
    parent, _, name = path.rpartition(".")
    value, field = redact({name: value})[name], field_at(cls, path)
    if field is not None and (inner := section_of(field)):
        return Problem(path=path, value=value, rule="it is a section of keys, not a key", fix=_one_by_one(path, inner))
    if reason := refused_key(path, value):
        return Problem(path=path, value=value, rule=reason, fix="remove the key")
    parent_field = field_at(cls, parent) if parent else None
    names = list(names_of((section_of(parent_field) if parent_field else None) or cls))
    alias = ALIASES.get(name, "")
    near = alias if alias in names else nearest(name, names)
    near = ".".join(filter(None, (above, parent, near))) if near else ""
    elsewhere = [p for p, _ in leaf_paths(cls) if p.rpartition(".")[2] in {name, alias}]
    if alias not in names and elsewhere:
        near = " or ".join(elsewhere[:3])
    kind = cls.model_fields.get("kind")
    rule = f"there is no such key in kind {get_args(kind.annotation)[0]}" if kind else "there is no such key"
    return Problem(
        path=path, value=value, rule=rule, fix=f"did you mean {near}?" if near else f"keys here: {', '.join(names)}"
    )


def _by_path(error: ValidationError, tree: Any) -> dict[str, list[Any]]:
    """Return pydantic's errors by the dotted paths of their keys, the branches of a union together."""
    found: dict[str, list[Any]] = {}
    for item in error.errors(include_url=False, include_context=True):
        node, parts = tree, []
        for depth, part in enumerate(item["loc"], start=1):
            if part in node if isinstance(node, dict) else isinstance(node, list) and part in range(len(node)):
                node = node[part]
            elif item["type"] != "missing" or depth < len(item["loc"]):
                continue
            parts.append(str(part))
        found.setdefault(".".join(parts), []).append(item)
    return found


def _problem(path: str, items: Sequence[Any], field: FieldInfo | None, above: str) -> Problem:
    """Return one problem of a field, from pydantic's error or from one of each branch of a union."""
    about = (field.description if field is not None else None) or ""
    full, name = f"{above}.{path}" if above else path, path.rpartition(".")[2]
    if items[0]["type"] == "missing":
        return Problem(path=path, rule="the key is required", fix=f"set {full}", about=about)
    value = redact({name: items[0]["input"]})[name]
    rules = [_rule(item) for item in items]
    rule = " or ".join([rules[0], *(other.removeprefix("input should be ") for other in rules[1:])])
    fix = next(filter(None, (_made_of(full, value, item, field) for item in items)), "")
    asked = [_ASKED[item["type"]].format_map(item.get("ctx", {})) for item in items if item["type"] in _ASKED]
    fix = fix or (f"write {', or '.join(asked)}" if asked else "")
    return Problem(path=path, value=value, rule=NAME_RULE if path == "name" else rule, fix=fix, about=about)


def _rule(item: Any) -> str:
    if item["type"] == "string_pattern_mismatch" and (words := PATTERN_WORDS.get(item["ctx"]["pattern"])):
        return f"input should be {words}"
    message = str(item["msg"]).removeprefix("Value error, ")
    return message[:1].lower() + message[1:]


def _made_of(path: str, value: Any, item: Any, field: FieldInfo | None) -> str:
    """Return a fix that is made of the value itself; empty where there is none."""
    kind, context, name = item["type"], item.get("ctx", {}), path.rpartition(".")[2]
    if kind in _BOUNDS:
        return f"write a number {_BOUNDS[kind]} {next(iter(context.values())):.15g}"
    if kind == "string_type" and isinstance(value, bool | int | float):
        return f'quote it: "{show(value)}"'
    if kind.endswith("model_type") and field is not None and (section := section_of(field)):
        first, inner = next(iter(names_of(section).items()))
        is_text = isinstance(value, str) and strip_optional(inner.annotation) is str
        return f"write `{name}: {{{first}: {value}}}`" if is_text else _one_by_one(path, section)
    if value == "":
        return "write a value, or leave the key out"
    if not isinstance(value, str):
        return ""
    if kind == "tuple_type":
        return f"write `{name}: [{', '.join(part.strip() for part in value.split(','))}]`"
    if kind in ("literal_error", "string_pattern_mismatch"):
        near = _near(value, context, field)
        like = (field.examples or [field.default])[0] if field is not None and kind != "literal_error" else None
        return f"did you mean {near}?" if near else f"write one like {show(like)}" if isinstance(like, str) else ""
    word = value if kind in _NUMBERS and re.fullmatch(_NUMBERS[kind], value) else ""
    if kind == "bool_type":
        word = truth_of(value) or (value.lower() if value.lower() in ("true", "false") else "")
    return f"write {word}, without quotes" if word else ""


def _near(text: str, context: Any, field: FieldInfo | None) -> str:
    """Return what a text was probably meant to be: one of the allowed names, or a name, quantity, URL or path."""
    pattern = context.get("pattern")
    names = re.findall("'([^']+)'", context.get("expected") or PATTERN_WORDS.get(pattern, ""))
    if names or pattern is None:
        return nearest(_WORDS.get(text.lower(), text), names)
    bare, name = text.strip("/ "), joined([text])
    tries = [text.removesuffix("B"), f"http://{bare}", f"/{bare}"]
    if field is None or not field.examples:
        tries += [name, f"run-{name}", name.replace("-", "_")]
    return next((one for one in tries if re.search(pattern, one)), "")


def _one_by_one(path: str, section: type[Section]) -> str:
    return f"set its keys one by one: {', '.join(f'{path}.{name}' for name in names_of(section))}"
