"""Owns sweeps: a spec with a `matrix` and Jinja2 expressions becomes one plain spec a cell, each with its own name.

    name: lr-{{ matrix.lr }}-s{{ matrix.seed }}     # a text with expressions stays a text
    seed: "{{ matrix.seed }}"                       # a lone expression keeps its value's type
    matrix: {lr: [1e-6, 3e-6], seed: [1, 2]}

Expressions see `matrix` only, and a name that is not there is an error. Without an expression in `name`, the cell's
values are appended to it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import SandboxedEnvironment

from opd.spec.base import MAX_NAME_CHARS
from opd.spec.errors import Problem, SpecError

MAX_CELLS = 1000
NUM_HASH_CHARS = 6
_LONE = re.compile(r"\{\{(?P<expression>(?:(?!\}\}|\{\{).)*)\}\}", re.DOTALL)
_ENVIRONMENT = SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)


def expand(tree: Mapping[str, Any], *, origin: str) -> list[dict[str, Any]]:
    """One spec for each cell of the matrix, the last key fastest; the spec itself where it has no matrix.

    Raises:
        SpecError: a matrix that is no map of lists, too many cells, an expression that fails, or equal names.
    """
    if "matrix" not in tree:
        return [dict(tree)]
    matrix = tree["matrix"]
    _check(matrix, origin)
    template = {key: value for key, value in tree.items() if key != "matrix"}
    out = []
    for values in itertools.product(*matrix.values()):
        cell = dict(zip(matrix, values, strict=True))
        spec = _fill(template, cell, "", origin)
        spec["name"] = _name(template.get("name"), spec.get("name"), cell)
        out.append(spec)
    names = [spec["name"] for spec in out]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        rule = f"every cell of the matrix needs a name of its own; {', '.join(doubled)} occurs more than once"
        _refuse("name", tree.get("name"), rule, "name every key of the matrix in it, or leave expressions out", origin)
    return out


def _check(matrix: Any, origin: str) -> None:
    fix = "matrix: {seed: [1, 2, 3]}"
    if not isinstance(matrix, dict) or not matrix:
        _refuse("matrix", matrix, "a matrix maps names to lists of values", fix, origin)
    for key, values in matrix.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
            _refuse(f"matrix.{key}", values, "a name that expressions can use: letters, digits and _", fix, origin)
        if not isinstance(values, list) or not values or any(isinstance(value, dict | list) for value in values):
            _refuse(f"matrix.{key}", values, "a list of one or more plain values", fix, origin)
    num_cells = 1
    for values in matrix.values():
        num_cells *= len(values)
    if num_cells > MAX_CELLS:
        _refuse("matrix", num_cells, f"at most {MAX_CELLS} cells", "split the sweep", origin)


def _fill(value: Any, cell: Mapping[str, Any], path: str, origin: str) -> Any:
    if isinstance(value, dict):
        return {key: _fill(inner, cell, f"{path}.{key}" if path else key, origin) for key, inner in value.items()}
    if isinstance(value, list):
        return [_fill(inner, cell, f"{path}[{index}]", origin) for index, inner in enumerate(value)]
    if not isinstance(value, str) or "{{" not in value:
        return value
    try:
        lone = _LONE.fullmatch(value.strip())
        if lone is None:
            return _ENVIRONMENT.from_string(value).render(matrix=cell)
        found = _ENVIRONMENT.compile_expression(lone["expression"], undefined_to_none=False)(matrix=cell)
        str(found)  # StrictUndefined complains when it is looked at
        return found
    except TemplateError as error:
        known = ", ".join(f"matrix.{key}" for key in cell)
        _refuse(path, value, f"the expression fails: {error}", f"expressions may use {known}", origin)


def _name(template: Any, filled: Any, cell: Mapping[str, Any]) -> str:
    """The filled name, or the plain one with the cell's values behind it; a long one ends in a hash of the cell."""
    if isinstance(template, str) and "{{" in template:
        return _slug(str(filled))
    suffix = "-".join(f"{_slug(key)}-{_slug(str(value))}" for key, value in cell.items())
    name = f"{filled or 'run'}-{suffix}"
    if len(name) <= MAX_NAME_CHARS:
        return name
    digest = hashlib.sha256(json.dumps(cell, sort_keys=True).encode()).hexdigest()[:NUM_HASH_CHARS]
    return f"{name[: MAX_NAME_CHARS - NUM_HASH_CHARS - 1].rstrip('-')}-{digest}"


def _slug(text: str) -> str:
    """Lower-case letters, digits and single dashes: `3e-06` and `1.5` become `3e-06` and `1-5`."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _refuse(path: str, value: Any, rule: str, fix: str, origin: str) -> NoReturn:
    raise SpecError([Problem(path=path, value=value, rule=rule, fix=fix)], origin=origin)
