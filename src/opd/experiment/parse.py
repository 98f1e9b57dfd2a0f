"""A validated spec from a plain tree: refusals, defaults, fields, then the rules between keys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from pydantic import ValidationError

from opd.experiment.base import Kind
from opd.experiment.defaults import fill_defaults
from opd.experiment.environment import Applied
from opd.experiment.errors import Problem, SpecError, nearest
from opd.experiment.field_errors import field_problems
from opd.experiment.kinds import SPEC_CLASSES, FileSpec
from opd.experiment.notes import notes
from opd.experiment.raw import fold
from opd.experiment.reader import read_text, without_nulls
from opd.experiment.refusals import secrets
from opd.experiment.rules import check

CHART_KEYS = ("cluster", "global")
"""The charts' part of an experiment file; the trainer does not read it."""


@dataclass(frozen=True)
class Loaded:
    """A loaded experiment.

    Attributes:
        spec: the validated spec, every default filled in.
        chart: the file's `cluster` and `global`, unread.
        notes: remarks for people: ignored variables, settings that are probably not meant.
        env_applied: environment variables that override the file, in the table's order.
        origin: name of the file.
    """

    spec: FileSpec
    chart: dict[str, Any]
    notes: tuple[str, ...] = ()
    env_applied: tuple[Applied, ...] = ()
    origin: str = ""


def kind_of(tree: Mapping[str, Any]) -> Kind:
    """Return the tree's kind.

    Raises:
        SpecError: the kind is missing or unknown.
    """
    kind = tree.get("kind")
    if isinstance(kind, str) and kind in SPEC_CLASSES:
        return kind
    rule, near = f"kind is one of {', '.join(SPEC_CLASSES)}", nearest(str(kind), list(SPEC_CLASSES)) or "opd"
    raise SpecError([Problem(path="kind", value=kind, rule=rule, fix=f"write `kind: {near}`")])


def parse_tree(source: Mapping[str, Any]) -> Loaded:
    """Validate a tree of plain values; null unsets a key.

    Raises:
        SpecError: with every problem found.
    """
    text = json.dumps(source, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError as error:  # a variable of the environment may hold any bytes
        value = ascii(text[max(0, error.start - 20) : error.end])
        rule, fix = "text must be valid Unicode", "remove the stray bytes"
        raise SpecError([Problem(path="", value=value, rule=rule, fix=fix)]) from None
    tree = without_nulls(read_text(text, origin="", is_json=True).tree)
    problems = list(secrets(tree))
    chart = {key: tree.pop(key) for key in CHART_KEYS if key in tree}
    if tree.pop("matrix", None) is not None:
        rule = "a matrix is a sweep of experiments; one run takes one"
        fix = "`opdctl submit` starts a run for each cell; here, write one cell's values into a file without `matrix`"
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
    return Loaded(spec, chart, tuple(notes(spec)))


def expand_models(tree: dict[str, Any]) -> None:
    """Write a model that is given by its path alone, `model: PATH`, as its section."""
    teachers = tree.get("teachers")
    several = teachers if isinstance(teachers, dict) else {}
    for section, name in [(tree, "model"), (tree, "teacher"), *((several, name) for name in several)]:
        if isinstance(path := section.get(name), str):
            section[name] = {"path": path}
