"""Sweeps: a spec with a `matrix` becomes one spec for each cell of the product, each with its own name.

matrix: {opd.loss_type: [reverse_kl, jsd], seed: [1, 2, 3]}   # keys of the spec by their dotted paths
"""

from __future__ import annotations

import copy
import itertools
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from opd.config import SPEC_CLASSES
from opd.config.base import joined
from opd.config.errors import Problem, SpecError, nearest
from opd.config.parse import kind_of
from opd.config.tree import field_at, leaf_paths, set_path

MAX_CELLS = 1000
_PATH = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


def expand(
    tree: Mapping[str, Any], *, origin: str, name_of: Callable[[Mapping[str, Any]], str]
) -> list[dict[str, Any]]:
    """Return one spec for each cell of the matrix, the last key fastest; the spec itself where it has no matrix.

    Args:
        name_of: gives a cell's default name, for a sweep without `name`.

    Raises:
        SpecError: a matrix that is no map of lists, too many cells, an unknown key, or equal names.
    """
    if "matrix" not in tree:
        return [dict(tree)]
    matrix = tree["matrix"]
    _check(matrix, tree, origin)
    out = []
    for numbers in itertools.product(*(range(len(values)) for values in matrix.values())):
        spec = copy.deepcopy({key: value for key, value in tree.items() if key != "matrix"})
        words = []
        for (key, values), number in zip(matrix.items(), numbers, strict=True):
            value = values[number]
            if not set_path(spec, key, copy.deepcopy(value)):
                _refuse(f"matrix.{key}", value, "a key above it holds a value in the file", "remove that", origin)
            # A dotted key's last part says enough: opd.loss_type becomes loss-type. A section or list goes by its number.
            is_plain = not isinstance(value, dict | list)
            words.append(f"{key.rpartition('.')[2]}-{value if is_plain else number + 1}")
        cell = {key: values[number] for (key, values), number in zip(matrix.items(), numbers, strict=True)}
        spec["name"] = joined(
            [str(spec.get("name") or name_of(spec)), *words], distinct=json.dumps(cell, sort_keys=True)
        )
        out.append(spec)
    names = [spec["name"] for spec in out]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        rule = f"every cell of the matrix needs a name of its own; {', '.join(doubled)} occurs more than once"
        _refuse("matrix", matrix, rule, "take out a value that is there twice", origin)
    return out


def _check(matrix: Any, tree: Mapping[str, Any], origin: str) -> None:
    fix = "matrix: {seed: [1, 2, 3]}"
    if not isinstance(matrix, dict) or not matrix:
        _refuse("matrix", matrix, "a matrix maps keys to lists of values", fix, origin)
    cls = SPEC_CLASSES[kind_of(tree)]
    for key, values in matrix.items():
        if not isinstance(values, list) or not values:
            _refuse(f"matrix.{key}", values, "a list of one or more values", fix, origin)
        if not _PATH.fullmatch(key) or ("." not in key and field_at(cls, key) is None):
            paths = [path for path, _ in leaf_paths(cls)]
            found = [path for path in paths if path.rpartition(".")[2] == key] or [nearest(key, paths)]
            meant = f"did you mean {' or '.join(found[:3])}? " if found[0] else ""
            rule = "a key of the spec by its dotted path (opd.loss_type, seed)"
            _refuse(f"matrix.{key}", values, rule, meant + fix, origin)
    num_cells = math.prod(map(len, matrix.values()))
    if num_cells > MAX_CELLS:
        _refuse("matrix", num_cells, f"at most {MAX_CELLS} cells", "split the sweep", origin)


def _refuse(path: str, value: Any, rule: str, fix: str, origin: str) -> NoReturn:
    raise SpecError([Problem(path=path, value=value, rule=rule, fix=fix)], origin=origin)
