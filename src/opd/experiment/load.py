"""Loading of a spec: site file, experiment file, environment variables, `--set`, Hydra overrides; later ones win."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from opd.experiment.errors import Problem, SpecError
from opd.experiment.kinds import PipelineSpec
from opd.experiment.parse import Loaded, parse_tree
from opd.experiment.pipeline import stages_of
from opd.experiment.reader import Document, read_text
from opd.experiment.tree import merge

SITE_VARIABLE = "OPDCTL_SITE"  # the file's path, for tool and launcher
SITE_KEYS = ("cluster", "store", "env")


def load_spec(path: str | Path, *, site: str | Path | None = None, **more: Any) -> Loaded:
    """Load an experiment file (`.json`: as Helm writes it) over a site file, with what `parse_tree` takes."""
    return _load(read_document(path, site=site), origin=str(path), **more)


def load_text(text: str, *, origin: str = "experiment spec", is_json: bool = False, **more: Any) -> Loaded:
    """Load a text in memory, as `load_spec` loads a file."""
    return _load(read_text(text, origin=origin, is_json=is_json), origin=origin, **more)


def _load(document: Document, *, origin: str, **more: Any) -> Loaded:
    try:
        loaded = parse_tree(document.tree, sources=document.sources, **more)
        if isinstance(loaded.spec, PipelineSpec):
            stages_of(loaded.spec)
    except SpecError as error:
        raise SpecError([_located(each, document.sources) for each in error.problems], origin=origin) from None
    return replace(loaded, origin=origin)


def _located(problem: Problem, sources: Mapping[str, str]) -> Problem:
    """Return the problem with the source of its path, or else of the nearest section above."""
    path = problem.path
    while path and path not in sources:
        path = path.rpartition(".")[0]
    return replace(problem, source=problem.source or sources.get(path, ""))


def read_document(path: str | Path, *, site: str | Path | None = None) -> Document:
    """Return the tree of an experiment file, over its site file's; nothing but the site's keys is validated."""
    document = _document(path)
    if site is None:
        return document
    below = _document(site, fix=f"it is the site file: name another by --site or ${SITE_VARIABLE}, or leave both out")
    if others := {key: value for key, value in below.tree.items() if key not in SITE_KEYS}:
        rule = f"a site file holds what every run on a cluster has in common: {', '.join(SITE_KEYS)}"
        fix = "move the key into the experiment"
        raise SpecError((Problem(path=key, value=others[key], rule=rule, fix=fix) for key in others), origin=str(site))
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
