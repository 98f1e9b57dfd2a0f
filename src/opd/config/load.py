"""Loading of a spec: site file, experiment file, environment variables, `--set`, Hydra overrides; later ones win."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from opd.config.base import Section
from opd.config.environment import Applied, apply_environment
from opd.config.errors import Problem, SpecError, located
from opd.config.kinds import SPEC_CLASSES, FileSpec, PipelineSpec
from opd.config.parse import explain_unknown, kind_of, parse_tree
from opd.config.pipeline import stages_of
from opd.config.raw import fold, parse_value
from opd.config.reader import Document, read_text
from opd.config.refusals import redact
from opd.config.tree import field_at, merge, section_of, set_path

SITE_VARIABLE = "OPDCTL_SITE"  # the file's path, for tool and launcher
SITE_KEYS = ("cluster", "store", "env")


def over_site(experiment: Document, site: Document, *, origin: str) -> Document:
    """The experiment's document over a site file's; the experiment's keys win.

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


MAX_FILE_BYTES = 4 * 2**20
_SITE_FIX = f"it is the site file: name another by --site or ${SITE_VARIABLE}, or leave both out"
# Parts of a file that no `--set` of a run reaches: (rule, fix).
_ELSEWHERE = {
    "cluster": (
        "the trainer does not read `cluster`, which is for charts and tool",
        "write it into the file, or into one for --site; `opdctl render` and `opdctl submit` take it by --set",
    ),
    "matrix": (
        "a matrix is the file's alone: it makes runs, and --set goes into each of them",
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


def load_spec(
    path: str | Path,
    *,
    site: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    sets: Iterable[str] = (),
    overrides: Iterable[str] = (),
) -> Loaded:
    """Load an experiment file (`.json`: as Helm writes it; else YAML).

    Args:
        path: the file.
        site: a file with what every run on a cluster has in common, which goes under the experiment's.
        env: variables to apply (`os.environ` at the front door); None or empty: the file is final.
        sets: `spec.path=value`, last wins.
        overrides: raw Hydra overrides, applied after `sets`.

    Raises:
        SpecError: for a file that cannot be read or a spec that cannot be used.
    """
    return _load(read_document(path, site=site), origin=str(path), env=env, sets=sets, overrides=overrides)


def read_document(path: str | Path, *, site: str | Path | None = None) -> Document:
    """The tree of an experiment file, over its site file's; nothing but the site's keys is validated.

    Raises:
        SpecError: for a file that cannot be read, or a site file that holds something of an experiment.
    """
    document = _document(path)
    return document if site is None else over_site(document, _document(site, fix=_SITE_FIX), origin=str(site))


def _document(path: str | Path, *, fix: str = "") -> Document:
    file = Path(path)
    return read_text(_read_file(file, fix), origin=str(path), is_json=file.suffix == ".json")


def load_text(
    text: str,
    *,
    origin: str = "experiment spec",
    is_json: bool = False,
    env: Mapping[str, str] | None = None,
    sets: Iterable[str] = (),
    overrides: Iterable[str] = (),
) -> Loaded:
    """`load_spec` for a text in memory."""
    return _load(
        read_text(text, origin=origin, is_json=is_json), origin=origin, env=env, sets=sets, overrides=overrides
    )


def _load(
    document: Document,
    *,
    origin: str,
    env: Mapping[str, str] | None,
    sets: Iterable[str],
    overrides: Iterable[str],
) -> Loaded:
    tree, sources = document.tree, document.sources
    problems: list[Problem] = []
    try:
        kind = kind_of(tree)
        cls = SPEC_CLASSES[kind]
        late = [str(item) for item in overrides]
        _fold_own(tree, cls, sources, problems)
        applied, unread = apply_environment(tree, kind, cls, env or {}, problems)
        sources.update({item.path: f"environment variable {item.name}" for item in applied})
        sources.update(_apply_sets(tree, cls, sets, problems))
        if late and "overrides" in cls.model_fields:
            sources.update(fold(tree, cls, late, "command line", problems))
        elif late:
            problems.append(Problem(path="overrides", value=late[0], rule=f"kind {kind} starts no verl trainer"))
        parsed = parse_tree(tree)
        if isinstance(parsed.spec, PipelineSpec):
            stages_of(parsed.spec)
    except SpecError as error:
        problems += error.problems
    if problems:
        raise SpecError(located(problems, sources), origin=origin)
    return Loaded(parsed.spec, parsed.chart, tuple(applied), (*unread, *parsed.notes), origin)


def _read_file(file: Path, fix: str) -> str:
    def refuse(rule: str) -> SpecError:
        return SpecError([Problem(path="", value=str(file), rule=rule, fix=fix)], origin=str(file))

    try:
        if file.stat().st_size > MAX_FILE_BYTES and file.is_file():
            raise refuse(f"an experiment file has at most {MAX_FILE_BYTES} bytes")
        return file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise refuse("there is no such file") from None
    except IsADirectoryError:
        raise refuse("this is a directory, not a file") from None
    except UnicodeDecodeError:
        raise refuse("the file must be UTF-8 text") from None
    except OSError as error:
        raise refuse(f"the file cannot be read: {error.strerror}") from None


def _fold_own(tree: dict[str, Any], cls: type[Section], sources: dict[str, str], problems: list[Problem]) -> None:
    """The file's own raw overrides take their place in the spec before the environment is applied."""
    if "overrides" in cls.model_fields and isinstance(tree.get("overrides"), list):
        sources.update(fold(tree, cls, tree.pop("overrides"), "overrides", problems))


def _apply_sets(
    tree: dict[str, Any], cls: type[Section], sets: Iterable[str], problems: list[Problem]
) -> dict[str, str]:
    sources: dict[str, str] = {}
    for text in sets:
        path, equals, raw = text.partition("=")
        source = f"--set {path}"
        if not path or not raw:
            rule, fix = "--set takes spec.path=value", "--set actor.learning_rate=1e-6"
            if path and equals:
                rule, fix = "the value is empty", f"write one behind `{path}=`, or leave the key out"
            problems.append(Problem(path=path, value=text, rule=rule, fix=fix, source=source))
            continue
        if told := _ELSEWHERE.get(path.partition(".")[0]):
            last = path.rpartition(".")[2]
            value = redact({last: raw})[last]
            problems.append(Problem(path=path, value=value, rule=told[0], fix=told[1], source=source))
            continue
        field = field_at(cls, path)
        if field is None or section_of(field) is not None:
            problems.append(explain_unknown(path, raw, cls, source))
            continue
        value = parse_value(raw, field, path, source, problems)
        if value is not None and not set_path(tree, path, value):
            problems.append(Problem(path=path, value=raw, rule="a key above it holds a value", source=source))
        sources[path] = source
    return sources
