"""Loading of a spec: site file, experiment file, environment variables, `--set`, Hydra overrides; later ones win."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from opd.experiment.base import Section
from opd.experiment.environment import apply_environment
from opd.experiment.errors import Problem, SpecError
from opd.experiment.field_errors import unknown_key
from opd.experiment.kinds import SPEC_CLASSES, PipelineSpec
from opd.experiment.parse import Loaded, expand_models, kind_of, parse_tree
from opd.experiment.pipeline import stages_of
from opd.experiment.raw import assign, fold
from opd.experiment.reader import Document, read_text, without_nulls
from opd.experiment.refusals import redact
from opd.experiment.tree import MISSING, field_at, get_path, merge, section_of, set_path

SITE_VARIABLE = "OPDCTL_SITE"  # the file's path, for tool and launcher
SITE_KEYS = ("cluster", "store", "env")
_GPUS = "trainer.gpus_per_node"
_SITE_FIX = f"it is the site file: name another by --site or ${SITE_VARIABLE}, or leave both out"


def load_spec(path: str | Path, *, site: str | Path | None = None, **more: Any) -> Loaded:
    """Load an experiment file (`.json`: as Helm writes it; else YAML).

    Args:
        path: the file.
        site: a file with the keys that every run on a cluster shares; the experiment's keys win.
        more: what else `load_document` takes.

    Raises:
        SpecError: for a file that cannot be read or a spec that cannot be used.
    """
    return load_document(read_document(path, site=site), origin=str(path), **more)


def load_text(text: str, *, origin: str = "experiment spec", is_json: bool = False, **more: Any) -> Loaded:
    """Load a text in memory, as `load_spec` loads a file."""
    return load_document(read_text(text, origin=origin, is_json=is_json), origin=origin, **more)


def load_document(
    document: Document,
    *,
    origin: str,
    env: Mapping[str, str] | None = None,
    sets: Iterable[str] = (),
    overrides: Iterable[str] = (),
    count_gpus: Callable[[], int] | None = None,
) -> Loaded:
    """Load a document that has been read.

    Args:
        env: variables to apply; None or empty: none.
        sets: `spec.path=value`, last wins.
        overrides: raw Hydra overrides, applied after `sets`.
        count_gpus: counts the GPUs of this machine, for a run on it that does not say `trainer.gpus_per_node`.
    """
    tree, sources = without_nulls(document.tree), dict(document.sources)
    problems: list[Problem] = []
    try:
        kind = kind_of(tree)
        cls = SPEC_CLASSES[kind]
        expand_models(tree)
        takes_overrides, late = "overrides" in cls.model_fields, [str(item) for item in overrides]
        if takes_overrides and isinstance(tree.get("overrides"), list):
            sources |= fold(tree, cls, tree.pop("overrides"), "overrides", problems)
        applied, unread = apply_environment(tree, kind, cls, env or {}, problems)
        sources |= {item.path: f"environment variable {item.name}" for item in applied}
        sources |= _apply_sets(tree, cls, sets, problems)
        if late and takes_overrides:
            sources |= fold(tree, cls, late, "command line", problems)
        elif late:
            problems.append(Problem(path="overrides", value=late[0], rule=f"kind {kind} starts no verl trainer"))
        here = tree.get("device", "cuda") == "cuda" and get_path(tree, "trainer.nnodes") in (MISSING, 1)
        if count_gpus is not None and here and "trainer" in cls.model_fields and get_path(tree, _GPUS) is MISSING:
            set_path(tree, _GPUS, count_gpus() or None)
        parsed = parse_tree(tree)
        if isinstance(parsed.spec, PipelineSpec):
            stages_of(parsed.spec)
    except SpecError as error:
        problems += error.problems
    if problems:
        raise SpecError([_located(problem, sources) for problem in problems], origin=origin)
    return replace(parsed, notes=(*unread, *parsed.notes), env_applied=tuple(applied), origin=origin)


def _located(problem: Problem, sources: Mapping[str, str]) -> Problem:
    """Return the problem with the source of its path, or else of the nearest section above."""
    path, source = problem.path, problem.source
    while not source and path:
        source, path = sources.get(path, ""), path.rpartition(".")[0]
    return replace(problem, source=source)


def read_document(path: str | Path, *, site: str | Path | None = None) -> Document:
    """Return the tree of an experiment file, over its site file's; nothing but the site's keys is validated.

    Raises:
        SpecError: for a file that cannot be read, or a site file that holds something of an experiment.
    """
    document = _document(path)
    if site is None:
        return document
    below = _document(site, fix=_SITE_FIX)
    for key, value in below.tree.items():
        if key not in SITE_KEYS:
            rule = f"a site file holds what every run on a cluster has in common: {', '.join(SITE_KEYS)}"
            fix = "move the key into the experiment; for opdctl, -f names a file whose keys go over the experiment's"
            raise SpecError([Problem(path=key, value=value, rule=rule, fix=fix)], origin=str(site))
    sources = {key: f"{site}, {line}" for key, line in below.sources.items()}
    return Document(merge(below.tree, document.tree), {**sources, **document.sources})


def _document(path: str | Path, *, fix: str = "") -> Document:
    file = Path(path)
    try:
        return read_text(file.read_text(encoding="utf-8-sig"), origin=str(path), is_json=file.suffix == ".json")
    except UnicodeDecodeError:
        rule = "the file must be UTF-8 text"
    except OSError as error:
        rule = f"the file cannot be read: {str(error.strerror).lower()}"
    raise SpecError([Problem(path="", value=str(file), rule=rule, fix=fix)], origin=str(file))


def _apply_sets(
    tree: dict[str, Any], cls: type[Section], sets: Iterable[str], problems: list[Problem]
) -> dict[str, str]:
    sources: dict[str, str] = {}
    for text in sets:
        path, _, raw = text.partition("=")
        sources[path] = source = f"--set {path}"
        if problem := _refused_set(text, cls):
            problems.append(replace(problem, source=source))
        else:
            assign(tree, cls, path, raw, source, problems)
    return sources


def _refused_set(text: str, cls: type[Section]) -> Problem | None:
    path, equals, raw = text.partition("=")
    section, last, field = path.partition(".")[0], path.rpartition(".")[2], field_at(cls, path)
    if path and equals and not raw:
        rule, fix = "the value is empty", f"write one after `{path}=`, or leave the key out"
    elif not path or not raw:
        rule, fix = "--set takes spec.path=value", "--set actor.learning_rate=1e-6"
    elif section in ("cluster", "matrix"):
        rule = f"a run does not read `{section}`, which is for charts and tool"
        fix = "write it into the file; `opdctl render` and `opdctl submit` take --set cluster.KEY=VALUE"
    elif field is None or (section_of(field) is not None and path not in ("model", "teacher")):
        return unknown_key(path, raw, cls)
    else:
        return None
    return Problem(path=path, value=redact({last: raw})[last] if raw else text, rule=rule, fix=fix)
