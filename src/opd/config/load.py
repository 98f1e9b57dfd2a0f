"""Loading of a spec: site file, experiment file, environment variables, `--set`, Hydra overrides; later ones win."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from opd.config.base import Section
from opd.config.environment import Applied, apply_environment
from opd.config.errors import Problem, SpecError, located
from opd.config.field_errors import unknown_key
from opd.config.kinds import SPEC_CLASSES, FileSpec, PipelineSpec
from opd.config.parse import expand_models, kind_of, parse_tree
from opd.config.pipeline import stages_of
from opd.config.raw import fold, parse_value
from opd.config.reader import Document, read_text
from opd.config.refusals import redact
from opd.config.tree import MISSING, field_at, get_path, merge, section_of, set_path

SITE_VARIABLE = "OPDCTL_SITE"  # the file's path, for tool and launcher
SITE_KEYS = ("cluster", "store", "env")
MAX_FILE_BYTES = 4 * 2**20
_SITE_FIX = f"it is the site file: name another by --site or ${SITE_VARIABLE}, or leave both out"
# Parts of a file that no `--set` of a run reaches: (rule, fix).
_ELSEWHERE = {
    "cluster": (
        "the trainer does not read `cluster`, which is for charts and tool",
        "write it into the file, or into one for --site; `opdctl render` and `opdctl submit` take it by --set",
    ),
    "matrix": (
        "a matrix is the file's alone: it makes runs, and --set changes each of them",
        "edit the file's `matrix`, or leave that key out of it and give it by --set",
    ),
}


@dataclass(frozen=True)
class Loaded:
    """A loaded experiment.

    Attributes:
        spec: the validated spec, every default filled in.
        chart: the file's `cluster` and `global`, unread.
        env_applied: environment variables that override the file, in the table's order.
        notes: remarks for people: ignored variables, settings that are probably not meant.
        origin: name of the file.
    """

    spec: FileSpec
    chart: dict[str, Any]
    env_applied: tuple[Applied, ...]
    notes: tuple[str, ...]
    origin: str


def load_spec(path: str | Path, *, site: str | Path | None = None, **more: Any) -> Loaded:
    """Load an experiment file (`.json`: as Helm writes it; else YAML).

    Args:
        path: the file.
        site: a file with what every run on a cluster has in common, which goes under the experiment's.
        more: what goes over the file, as `load_document` has it.

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
    tree, sources = document.tree, document.sources
    problems: list[Problem] = []
    try:
        kind = kind_of(tree)
        cls = SPEC_CLASSES[kind]
        expand_models(tree)
        takes_overrides, late = "overrides" in cls.model_fields, [str(item) for item in overrides]
        if takes_overrides and isinstance(tree.get("overrides"), list):
            sources.update(fold(tree, cls, tree.pop("overrides"), "overrides", problems))
        applied, unread = apply_environment(tree, kind, cls, env or {}, problems)
        sources.update({item.path: f"environment variable {item.name}" for item in applied})
        sources.update(_apply_sets(tree, cls, sets, problems))
        if late and takes_overrides:
            sources.update(fold(tree, cls, late, "command line", problems))
        elif late:
            problems.append(Problem(path="overrides", value=late[0], rule=f"kind {kind} starts no verl trainer"))
        if count_gpus is not None:
            _fill_gpus(tree, cls, count_gpus)
        parsed = parse_tree(tree)
        if isinstance(parsed.spec, PipelineSpec):
            stages_of(parsed.spec)
    except SpecError as error:
        problems += error.problems
    if problems:
        raise SpecError(located(problems, sources), origin=origin)
    return Loaded(parsed.spec, parsed.chart, tuple(applied), (*unread, *parsed.notes), origin)


def read_document(path: str | Path, *, site: str | Path | None = None) -> Document:
    """Return the tree of an experiment file, over its site file's; nothing but the site's keys is validated.

    Raises:
        SpecError: for a file that cannot be read, or a site file that holds something of an experiment.
    """
    document = _document(path)
    return document if site is None else over_site(document, _document(site, fix=_SITE_FIX), origin=str(site))


def over_site(experiment: Document, site: Document, *, origin: str) -> Document:
    """Return the experiment's document over a site file's; the experiment's keys win.

    Args:
        origin: name of the site file, for errors and as the source of its keys.

    Raises:
        SpecError: the site file holds something of an experiment.
    """
    for key, value in site.tree.items():
        if key not in SITE_KEYS:
            rule = f"a site file holds what every run on a cluster has in common: {', '.join(SITE_KEYS)}"
            fix = "move the key into the experiment; for opdctl, a file whose keys go over the experiment's is given by -f"
            raise SpecError([Problem(path=key, value=value, rule=rule, fix=fix)], origin=origin)
    sources = {path: f"{origin}, {line}" for path, line in site.sources.items()}
    return replace(experiment, tree=merge(site.tree, experiment.tree), sources={**sources, **experiment.sources})


def _document(path: str | Path, *, fix: str = "") -> Document:
    file = Path(path)
    try:
        if file.is_file() and file.stat().st_size > MAX_FILE_BYTES:
            rule = f"an experiment file has at most {MAX_FILE_BYTES} bytes"
        else:
            return read_text(file.read_text(encoding="utf-8-sig"), origin=str(path), is_json=file.suffix == ".json")
    except FileNotFoundError:
        rule = "there is no such file"
    except IsADirectoryError:
        rule = "this is a directory, not a file"
    except UnicodeDecodeError:
        rule = "the file must be UTF-8 text"
    except OSError as error:
        rule = f"the file cannot be read: {error.strerror}"
    raise SpecError([Problem(path="", value=str(file), rule=rule, fix=fix)], origin=str(file))


def _fill_gpus(tree: dict[str, Any], cls: type[Section], count_gpus: Callable[[], int]) -> None:
    path = "trainer.gpus_per_node"
    is_local = tree.get("device", "cuda") == "cuda" and get_path(tree, "trainer.nnodes") in (MISSING, 1)
    if is_local and field_at(cls, path) is not None and get_path(tree, path) is MISSING and (number := count_gpus()):
        set_path(tree, path, number)


def _apply_sets(
    tree: dict[str, Any], cls: type[Section], sets: Iterable[str], problems: list[Problem]
) -> dict[str, str]:
    sources: dict[str, str] = {}
    for text in sets:
        path, equals, raw = text.partition("=")
        source = f"--set {path}"
        if problem := _refused_set(path, equals, raw, cls, source):
            problems.append(problem)
            continue
        field = field_at(cls, path)
        assert field is not None  # _refused_set has checked it
        value = parse_value(raw, field, path, source, problems)
        if value is not None and not set_path(tree, path, value):
            problems.append(Problem(path=path, value=raw, rule="a key above it holds a value", source=source))
        sources[path] = source
    return sources


def _refused_set(path: str, equals: str, raw: str, cls: type[Section], source: str) -> Problem | None:
    if not path or not raw:
        rule, fix = "--set takes spec.path=value", "--set actor.learning_rate=1e-6"
        if path and equals:
            rule, fix = "the value is empty", f"write one after `{path}=`, or leave the key out"
        return Problem(path=path, value=f"{path}{equals}{raw}", rule=rule, fix=fix, source=source)
    if told := _ELSEWHERE.get(path.partition(".")[0]):
        last = path.rpartition(".")[2]
        return Problem(path=path, value=redact({last: raw})[last], rule=told[0], fix=told[1], source=source)
    field = field_at(cls, path)
    if field is None or (section_of(field) is not None and path not in ("model", "teacher")):
        return unknown_key(path, raw, cls, source)
    return None
