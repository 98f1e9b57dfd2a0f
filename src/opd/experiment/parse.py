"""A validated spec from a plain tree: changes from outside the file, defaults, fields, then the rules between keys."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from pydantic import ValidationError

from opd.experiment.base import Kind
from opd.experiment.defaults import fill_defaults
from opd.experiment.errors import SECRET_FIX, SECRET_RULE, Problem, SpecError, nearest, secret_paths
from opd.experiment.field_errors import field_problems
from opd.experiment.kinds import SPEC_CLASSES, FileSpec
from opd.experiment.raw import Applied, Edits
from opd.experiment.reader import read_text, without_nulls
from opd.experiment.rules import check, notes
from opd.redaction import REDACTED

CHART_KEYS = ("cluster", "global")  # the charts' part of an experiment file; the trainer does not read it


@dataclass(frozen=True)
class Loaded:
    """A loaded experiment."""

    spec: FileSpec
    chart: dict[str, Any]  # the file's `cluster` and `global`, unread
    notes: tuple[str, ...] = ()  # ignored variables, settings that are probably not meant
    env_applied: tuple[Applied, ...] = ()
    origin: str = ""


def kind_of(tree: Mapping[str, Any]) -> Kind:
    """Return the tree's kind; SpecError for a missing or unknown one."""
    kind = tree.get("kind")
    if isinstance(kind, str) and kind in SPEC_CLASSES:
        return kind
    rule, near = f"kind is one of {', '.join(SPEC_CLASSES)}", nearest(str(kind), list(SPEC_CLASSES)) or "opd"
    raise SpecError([Problem(path="kind", value=kind, rule=rule, fix=f"write `kind: {near}`")])


def parse_tree(
    source: Mapping[str, Any],
    *,
    env: Mapping[str, str] | None = None,
    sets: Iterable[str] = (),
    overrides: Iterable[str] = (),
    count_gpus: Callable[[], int | None] = lambda: None,
    sources: dict[str, str] | None = None,
) -> Loaded:
    """Validate a tree of plain values, changed by variables, `path=value` and Hydra overrides.

    Args:
        count_gpus: counts the GPUs of the machine that runs it, which device and trainer.gpus_per_node follow; None means unknown.
        sources: gets the source of each key that the other arguments set.
    """
    tree = without_nulls(dict(source))
    kind, problems = kind_of(tree), list[Problem]()
    cls, edits = SPEC_CLASSES[kind], Edits(tree, kind, {} if sources is None else sources, problems)
    expand_models(tree)
    if isinstance(tree.get("overrides"), list):  # validation reports another value
        edits.overrides(tree.pop("overrides"), "overrides")
    applied, unread = edits.environment(env or {})
    edits.sets(sets)
    edits.overrides(overrides, "command line")
    if edits.kept:
        tree.setdefault("overrides", list(edits.kept.values()))
    tree = without_nulls(read_text(json.dumps(tree, ensure_ascii=False), origin="", is_json=True).tree)
    problems += [Problem(path=path, value=REDACTED, rule=SECRET_RULE, fix=SECRET_FIX) for path in secret_paths(tree)]
    chart = {key: tree.pop(key) for key in CHART_KEYS if key in tree}
    computed = fill_defaults(kind, cls, tree, count_gpus)
    try:
        spec = cast(FileSpec, cls.model_validate_json(json.dumps(tree)))
    except ValidationError as error:
        raise SpecError([*problems, *field_problems(error, tree, cls, computed=computed)]) from None
    problems += check(spec)
    if problems:
        raise SpecError(problems)
    return Loaded(spec, chart, (*unread, *notes(spec)), applied)


def expand_models(tree: dict[str, Any]) -> list[dict[str, Any]]:
    """Write each model that is given by its path alone, `model: PATH`, as its section; return these sections."""
    teachers = tree.get("teachers")
    several = teachers if isinstance(teachers, dict) else {}
    places = [(tree, "model"), (tree, "teacher"), *((several, name) for name in several)]
    for section, name in places:
        if isinstance(path := section.get(name), str):
            section[name] = {"path": path}
    return [section[name] for section, name in places if isinstance(section.get(name), dict)]
