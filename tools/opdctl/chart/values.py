"""A chart's values: the experiment file with site file and `--set`; a `matrix` makes one experiment a cell.

matrix: {opd.loss_type: [reverse_kl, jsd], seed: [1, 2, 3]}   # keys of the spec by their dotted paths
"""

import copy
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from opd.experiment import FileSpec, Loaded, Problem, SpecError, dump_spec, load_text
from opd.experiment.base import joined
from opd.experiment.cluster import load_cluster
from opd.experiment.load import read_document
from opd.experiment.reader import read_text
from opd.experiment.tree import get_path, merge, set_path

NAME_VARIABLE = "RUN_ID"
_EXAMPLE = "matrix: {seed: [1, 2, 3]}"


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
    file: Path, *, site: Path | None = None, env: Mapping[str, str], sets: Iterable[str] = ()
) -> list[Experiment]:
    """Read an experiment file; a `matrix` gives one experiment a cell.

    Args:
        site: a file with the keys that every run on a cluster shares; the experiment's keys win.
        env: variables of the original to apply.
    """
    tree, others = _with_cluster(read_document(file, site=site).tree, sets)
    origin = str(file)
    if "matrix" not in tree:
        return [_load(tree, env, others, origin=origin)]
    # A name from outside the file is the whole sweep's, to which each cell adds its own part.
    names = [text.partition("=")[2] for text in others if text.startswith("name=")] or [env.get(NAME_VARIABLE, "")]
    tree |= {"name": names[-1]} if names[-1] else {}
    env = {name: value for name, value in env.items() if name != NAME_VARIABLE}
    others = [text for text in others if not text.startswith("name=")]
    found = [_load(cell, env, others, origin=origin) for cell in _cells(tree, env, others, origin=origin)]
    ids = [item.run_id for item in found]
    if doubled := sorted({name for name in ids if ids.count(name) > 1}):
        rule = f"every cell of the matrix needs a name of its own; {', '.join(doubled)} occurs more than once"
        _refuse("matrix", tree["matrix"], rule, "take out a value that is there twice", origin)
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


def _cells(tree: dict[str, Any], env: Mapping[str, str], sets: list[str], *, origin: str) -> Iterator[dict[str, Any]]:
    """Yield one tree for each cell of the matrix, the last key fastest, each under a name of its own."""
    base, matrix = dict(tree), tree["matrix"]
    del base["matrix"]
    _check_matrix(matrix, origin)
    for choice in itertools.product(*(enumerate(values, start=1) for values in matrix.values())):
        cell, words = copy.deepcopy(base), []
        chosen = {key: value for key, (_, value) in zip(matrix, choice, strict=True)}
        for key, (number, value) in zip(matrix, choice, strict=True):
            if not set_path(cell, key, copy.deepcopy(value)):
                _refuse(f"matrix.{key}", value, "a key above it holds a value in the file", "remove that", origin)
            # opd.loss_type becomes loss-type; a section or a list goes by its number.
            is_plain = not isinstance(value, dict | list)
            words.append(f"{key.rpartition('.')[2]}-{value if is_plain else number}")
        loaded = _loaded(cell, env, sets, origin=origin)
        fixed = {item.path for item in loaded.env_applied} | {text.partition("=")[0] for text in sets}
        if hidden := sorted(fixed & chosen.keys()):
            rule, fix = "the key is overridden, so its cells are the same one", "take out the --set or the variable"
            _refuse(f"matrix.{hidden[0]}", chosen[hidden[0]], rule, fix, origin)
        name = str(cell.get("name") or loaded.spec.name)
        cell["name"] = joined([name, *words], distinct=json.dumps(chosen, sort_keys=True))
        yield cell


def _check_matrix(matrix: Any, origin: str) -> None:
    if not isinstance(matrix, dict) or not matrix:
        _refuse("matrix", matrix, "a matrix maps keys to lists of values", _EXAMPLE, origin)
    for key, values in matrix.items():
        if not isinstance(values, list) or not values:
            _refuse(f"matrix.{key}", values, "a list of one or more values", _EXAMPLE, origin)


def _refuse(path: str, value: Any, rule: str, fix: str, origin: str) -> NoReturn:
    raise SpecError([Problem(path=path, value=value, rule=rule, fix=fix)], origin=origin)


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
