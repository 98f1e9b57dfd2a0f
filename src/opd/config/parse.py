"""Makes a validated spec from a plain tree: refusals, defaults, fields, then the rules between keys."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from pydantic import ValidationError

from opd.config.base import PATTERN_WORDS, Kind, Section
from opd.config.defaults import fill_defaults
from opd.config.errors import Problem, SpecError, nearest
from opd.config.field_errors import by_path, field_problem
from opd.config.kinds import SPEC_CLASSES, FileSpec
from opd.config.notes import notes
from opd.config.raw import fold
from opd.config.reader import read_text
from opd.config.refusals import redact, refused_key, secrets
from opd.config.rules import check
from opd.config.tree import MISSING, field_at, leaf_paths, section_of

CHART_KEYS = ("cluster", "global")  # the charts' part of a values file; the trainer carries it along unread

# Names people bring from verl or from other trainers, and where the same thing lives here.
ALIASES: dict[str, str] = {
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


@dataclass(frozen=True)
class Parsed:
    """A validated spec, the charts' part of the file, and what deserves a remark."""

    spec: FileSpec
    chart: dict[str, Any]
    notes: tuple[str, ...] = ()


def kind_of(tree: Mapping[str, Any]) -> Kind:
    """The tree's kind.

    Raises:
        SpecError: if it is missing or unknown.
    """
    kind = tree.get("kind")
    if isinstance(kind, str) and kind in SPEC_CLASSES:
        return kind
    one_of = f"kind is one of {', '.join(SPEC_CLASSES)}"
    near = nearest(str(kind), list(SPEC_CLASSES)) or "opd"
    raise SpecError([Problem(path="kind", value=kind, rule=one_of, fix=f"write `kind: {near}`")])


def parse_tree(source: Mapping[str, Any]) -> Parsed:
    """Validate a tree of plain values; see `opd.config.reader` for what may be in one.

    Raises:
        SpecError: with every problem found.
    """
    tree = read_text(json.dumps(source), origin="", is_json=True).tree
    if problems := list(_broken_text(tree)):
        raise SpecError(problems)
    problems = list(secrets(tree))
    chart = {key: tree.pop(key) for key in CHART_KEYS if key in tree}
    problems += _sweeps(tree)
    kind = kind_of(tree)
    cls = SPEC_CLASSES[kind]
    if "overrides" in cls.model_fields and isinstance(tree.get("overrides"), list):
        fold(tree, cls, tree.pop("overrides"), "overrides", problems)
    unresolved = fill_defaults(kind, cls, tree)
    try:
        spec = cast(FileSpec, cls.model_validate_json(json.dumps(tree)))
    except ValidationError as error:
        raise SpecError([*problems, *_field_problems(error, tree, cls, unresolved)]) from None
    problems += check(spec)
    if problems:
        raise SpecError(problems)
    return Parsed(spec, chart, tuple(notes(spec)))


def _broken_text(tree: Any, path: str = "") -> Iterator[Problem]:
    """A problem for every string that is no Unicode text: an environment variable may hold any bytes."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _broken_text(key, f"{path}.?" if path else "?")
            yield from _broken_text(value, f"{path}.{key}" if path else key)
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from _broken_text(value, f"{path}.{index}")
    elif isinstance(tree, str) and not tree.isascii():
        try:
            tree.encode()
        except UnicodeEncodeError:
            yield Problem(path=path, value=ascii(tree), rule="text must be valid Unicode", fix="remove the stray bytes")


def _sweeps(tree: dict[str, Any]) -> list[Problem]:
    if tree.pop("matrix", MISSING) is MISSING:
        return []
    rule = "a matrix is a sweep of experiments; one run takes one"
    return [
        Problem(
            path="matrix",
            rule=rule,
            fix="`opdctl submit` starts a run for each cell; for one here, write its values into a file without `matrix`",
        )
    ]


def _field_problems(error: ValidationError, tree: Any, cls: type[Section], unresolved: set[str]) -> list[Problem]:
    """pydantic's errors in our words; a computed default that could not be computed is a follow-up, not an error."""
    out: list[Problem] = []
    follow_ups: list[Problem] = []
    found = list(by_path(error, tree))
    for path, items in found:
        item = items[0]
        if item["type"] == "too_short" and any(other.startswith(f"{path}.") for other, _ in found):
            continue  # pydantic counts a list's valid items: the invalid ones are reported themselves
        if item["type"] == "missing" and any(f"{name}.".startswith(f"{path}.") for name in unresolved):
            follow_ups.append(Problem(path=path, rule="its default follows from keys that are wrong or missing"))
        elif item["type"] == "extra_forbidden":
            out.append(explain_unknown(path, item["input"], cls))
        else:
            out.append(field_problem(path, items, field_at(cls, path), PATTERN_WORDS))
    return out or follow_ups


def explain_unknown(path: str, value: object, cls: type[Section], source: str = "") -> Problem:
    """A problem for a key that the kind does not have, with the nearest key that it has; a section takes no value either."""
    key = path.rpartition(".")[2]
    value = redact({key: value})[key]
    field = field_at(cls, path)
    if inner := section_of(field) if field else None:
        fix = f"set its keys one by one: {', '.join(f'{path}.{name}' for name in inner.model_fields)}"
        return Problem(path=path, value=value, rule="it is a section of keys, not a key", fix=fix, source=source)
    reason = refused_key(path, value)
    if reason:
        return Problem(path=path, value=value, rule=reason, fix="remove the key", source=source)
    parent = path.rpartition(".")[0]
    parent_field = field_at(cls, parent) if parent else None
    section = (section_of(parent_field) if parent_field else None) or cls
    prefix = f"{parent}." if parent else ""
    names = list(section.model_fields)
    alias = ALIASES.get(key, "")
    here = alias if alias in names else nearest(key, names)
    elsewhere = [p for p, _ in leaf_paths(cls) if p.rpartition(".")[2] in {key, alias}]
    if alias not in names and key not in names and elsewhere:
        found = " or ".join(elsewhere[:3])
    else:
        found = f"{prefix}{here}" if here else ""
    fix = f"did you mean {found}?" if found else f"keys here: {', '.join(names)}"
    kind = cls.model_fields["kind"].annotation
    return Problem(path=path, value=value, rule=f"there is no such key in {_kind_name(kind)}", fix=fix, source=source)


def _kind_name(annotation: Any) -> str:
    return f"kind {annotation.__args__[0]}"
