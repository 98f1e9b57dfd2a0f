"""A chart's values: the experiment file with environment variables and `--set` applied."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opd.config import (
    FileSpec,
    Loaded,
    Problem,
    SpecError,
    canonical_json,
    dump_spec,
    load_spec,
    load_text,
)
from opd.config.cluster.rules import load_cluster
from opd.config.load import SITE_VARIABLE, read_document
from opd.config.reader import read_text
from opd.config.tree import get_path, merge, set_path
from opdctl.chart.sweep import expand

NAME_VARIABLE = "RUN_ID"


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One plain experiment: its validated spec, and the values as the user wrote them (defaults are the chart's)."""

    spec: FileSpec
    values: dict[str, Any]
    notes: tuple[str, ...]

    @property
    def run_id(self) -> str:
        return self.spec.name


def load_experiments(
    file: Path,
    *,
    site: Path | None = None,
    overlays: Iterable[Path] = (),
    env: Mapping[str, str],
    sets: Iterable[str] = (),
    image: str | None = None,
) -> list[Experiment]:
    """Read an experiment file; a `matrix` gives one experiment a cell.

    Args:
        site: a file with the keys that every run on a cluster shares; the experiment's keys win.
        overlays: files whose keys win over the file's; maps are merged, other values replaced, as by Helm.
        env: variables of the original to apply.
        sets: `spec.path=value`.
        image: `cluster.image.ref`.

    Raises:
        SpecError: the spec is unusable, two cells are one experiment, or the site file holds a key of an experiment.
    """
    tree = read_document(file, site=site).tree
    for overlay in overlays:
        tree = merge(tree, read_document(overlay).tree)
    if image is not None:
        tree = merge(tree, {"cluster": {"image": {"ref": image}}})
    tree, sets = _with_cluster(tree, sets)
    if "matrix" in tree:
        tree, env, sets = _name_first(tree, env, sets)
    origin = str(file)
    cells = expand(tree, origin=origin, name_of=lambda cell: _loaded(cell, env, sets, origin=origin).spec.name)
    found = [_load(cell, env, sets, origin=origin) for cell in cells]
    _refuse_twins(found, tree.get("matrix"), origin=origin)
    return found


def _with_cluster(tree: dict[str, Any], sets: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
    """Apply each `--set cluster.KEY=VALUE` to the tree; return the tree and the other sets."""
    others = []
    for text in sets:
        path, _, value = text.partition("=")
        if not path.startswith("cluster.") or not value:
            others.append(text)
            continue
        above: dict[str, Any] = {}
        set_path(above, path, read_text(f"value: {value}", origin=f"--set {path}").tree["value"])
        tree = merge(tree, above)
    return tree, others


def load_one(file: str | Path) -> FileSpec:
    """Return the spec of an experiment file that names a run, over its site file ($OPDCTL_SITE).

    Raises:
        SpecError: the spec is unusable.
    """
    return load_spec(file, site=os.environ.get(SITE_VARIABLE) or None).spec


def _name_first(
    tree: dict[str, Any], env: Mapping[str, str], sets: list[str]
) -> tuple[dict[str, Any], Mapping[str, str], list[str]]:
    """Apply a name from outside the file to the whole sweep, before the cells get their names."""
    given = [text.partition("=")[2] for text in sets if text.startswith("name=")] or [env.get(NAME_VARIABLE, "")]
    if given[-1]:
        tree = {**tree, "name": given[-1]}
    others = {name: value for name, value in env.items() if name != NAME_VARIABLE}
    return tree, others, [text for text in sets if not text.startswith("name=")]


def _refuse_twins(found: Sequence[Experiment], matrix: Any, *, origin: str) -> None:
    """Reject a sweep with one experiment under two names."""
    first: dict[str, str] = {}
    for item in found:
        tree = {**dump_spec(item.spec), "name": "", "cluster": item.values.get("cluster")}
        twin = first.setdefault(canonical_json(tree), item.run_id)
        if twin != item.run_id:
            rule = f"each cell of the matrix must be another experiment; {twin} and {item.run_id} are the same one"
            fix = "take out the --set or environment variable that overrides a key of the matrix, or a value that is there twice"
            raise SpecError([Problem(path="matrix", value=matrix, rule=rule, fix=fix)], origin=origin)


def _loaded(tree: Mapping[str, Any], env: Mapping[str, str], sets: list[str], *, origin: str) -> Loaded:
    return load_text(json.dumps(tree), origin=origin, is_json=True, env=env, sets=sets)


def _load(tree: dict[str, Any], env: Mapping[str, str], sets: list[str], *, origin: str) -> Experiment:
    loaded = _loaded(tree, env, sets, origin=origin)
    spec = loaded.spec
    load_cluster(loaded.chart.get("cluster", {}), spec, origin=origin)
    resolved = dump_spec(spec)
    # Only overridden keys go into the values: the chart fills in the same defaults for `helm` and for the tool.
    for path in [item.path for item in loaded.env_applied] + [text.partition("=")[0] for text in sets]:
        set_path(tree, path, get_path(resolved, path))
    applied = [f"environment {item.name}: {item.path} = {item.value}" for item in loaded.env_applied]
    return Experiment(spec=spec, values=tree, notes=(*applied, *loaded.notes))
