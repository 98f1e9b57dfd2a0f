"""Makes a validated spec from a plain tree: refusals, defaults, fields, then the rules between keys."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from pydantic import ValidationError

from opd.config.base import Kind
from opd.config.defaults import fill_defaults
from opd.config.errors import Problem, SpecError, nearest
from opd.config.field_errors import field_problems
from opd.config.kinds import SPEC_CLASSES, FileSpec
from opd.config.notes import notes
from opd.config.raw import fold
from opd.config.reader import read_text
from opd.config.refusals import secrets
from opd.config.rules import check
from opd.config.tree import MISSING

CHART_KEYS = ("cluster", "global")  # the charts' part of a values file; the trainer carries it along unread


@dataclass(frozen=True)
class Parsed:
    """A validated spec, the charts' part of the file, and what deserves a remark."""

    spec: FileSpec
    chart: dict[str, Any]
    notes: tuple[str, ...] = ()


def kind_of(tree: Mapping[str, Any]) -> Kind:
    """Return the tree's kind.

    Raises:
        SpecError: if it is missing or unknown.
    """
    kind = tree.get("kind")
    if isinstance(kind, str) and kind in SPEC_CLASSES:
        return kind
    rule, near = f"kind is one of {', '.join(SPEC_CLASSES)}", nearest(str(kind), list(SPEC_CLASSES)) or "opd"
    raise SpecError([Problem(path="kind", value=kind, rule=rule, fix=f"write `kind: {near}`")])


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
    if tree.pop("matrix", MISSING) is not MISSING:
        rule = "a matrix is a sweep of experiments; one run takes one"
        fix = "`opdctl submit` starts a run for each cell; for one here, write its values into a file without `matrix`"
        problems.append(Problem(path="matrix", rule=rule, fix=fix))
    kind = kind_of(tree)
    cls = SPEC_CLASSES[kind]
    expand_models(tree)
    if "overrides" in cls.model_fields and isinstance(tree.get("overrides"), list):
        fold(tree, cls, tree.pop("overrides"), "overrides", problems)
    unresolved = fill_defaults(kind, cls, tree)
    try:
        spec = cast(FileSpec, cls.model_validate_json(json.dumps(tree)))
    except ValidationError as error:
        raise SpecError([*problems, *field_problems(error, tree, cls, unresolved=unresolved)]) from None
    problems += check(spec)
    if problems:
        raise SpecError(problems)
    return Parsed(spec, chart, tuple(notes(spec)))


def expand_models(tree: dict[str, Any]) -> None:
    """Write a model that is given by its path alone, `model: PATH`, as its section."""
    places = [(tree, name) for name in ("model", "teacher")]
    if isinstance(teachers := tree.get("teachers"), dict):
        places += [(teachers, name) for name in teachers]
    for section, name in places:
        if isinstance(path := section.get(name), str):
            section[name] = {"path": path}


def _broken_text(tree: Any, path: str = "") -> Iterator[Problem]:
    """Yield a problem for every string that is no Unicode text: an environment variable may hold any bytes."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _broken_text(key, f"{path}.?".lstrip("."))
            yield from _broken_text(value, f"{path}.{key}".lstrip("."))
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from _broken_text(value, f"{path}.{index}")
    elif isinstance(tree, str) and not tree.isascii():
        try:
            tree.encode()
        except UnicodeEncodeError:
            yield Problem(path=path, value=ascii(tree), rule="text must be valid Unicode", fix="remove the stray bytes")
