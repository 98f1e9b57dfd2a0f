"""Sweeps: a spec with a `matrix` becomes one plain spec for each cell, each with a name of its own.

    matrix: {opd.loss_type: [reverse_kl, jsd], seed: [1, 2, 3]}   # a key of the spec, by its dotted path: the cell sets it

A key that is no path of the spec is for expressions: `matrix: {size: [4B, 8B]}` with

    model: {path: "Qwen/Qwen3-{{ matrix.size }}"}   # a text with expressions stays a text
    seed: "{{ matrix.seed + 100 }}"                 # a lone expression keeps its value's type, and stands for the cell's own

Expressions see `matrix` only (`opdctl.chart.expressions`). Without an expression in `name`, the cell's values are appended to it.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from opd.config import SPEC_CLASSES
from opd.config.base import Section, joined, slug
from opd.config.errors import Problem, SpecError, nearest
from opd.config.parse import kind_of
from opd.config.tree import field_at, get_path, leaf_paths, section_of, set_path
from opdctl.chart.expressions import Expression, ExpressionError, compiled, has_expression

MAX_CELLS = 1000


def expand(
    tree: Mapping[str, Any], *, origin: str, name_of: Callable[[Mapping[str, Any]], str]
) -> list[dict[str, Any]]:
    """One spec for each cell of the matrix, the last key fastest; the spec itself where it has no matrix.

    Args:
        name_of: what a cell's spec is called by default, for a sweep without `name`.

    Raises:
        SpecError: a matrix that is no map of lists, too many cells, a key that nothing uses, an expression that fails, or
            equal names.
    """
    if "matrix" not in tree:
        return [dict(tree)]
    matrix = tree["matrix"]
    _check(matrix, origin)
    template = {key: value for key, value in tree.items() if key != "matrix"}
    expressions = dict(_expressions(template, tuple(matrix), "", origin))
    paths = _paths(template, matrix, expressions, origin)
    out = []
    for values in itertools.product(*matrix.values()):
        cell = dict(zip(matrix, values, strict=True))
        spec = _fill(template, cell, expressions, "", origin)
        for key in paths:
            if not set_path(spec, key, cell[key]):
                _refuse(f"matrix.{key}", cell[key], "a key above it holds a value in the file", "remove that", origin)
        spec["name"] = _name(template.get("name"), spec.get("name") or name_of(spec), cell)
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
        _refuse("matrix", matrix, "a matrix maps keys to lists of values", fix, origin)
    for key, values in matrix.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*", key):
            _refuse(
                f"matrix.{key}", values, "a key of the spec by its dotted path, or a name for expressions", fix, origin
            )
        if not isinstance(values, list) or not values or any(isinstance(value, dict | list) for value in values):
            _refuse(f"matrix.{key}", values, "a list of one or more plain values", fix, origin)
    num_cells = 1
    for values in matrix.values():
        num_cells *= len(values)
    if num_cells > MAX_CELLS:
        _refuse("matrix", num_cells, f"at most {MAX_CELLS} cells", "split the sweep", origin)


def _expressions(value: Any, known: tuple[str, ...], path: str, origin: str) -> Iterator[tuple[str, Expression]]:
    """Every path of the file whose text has expressions."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            yield from _expressions(inner, known, f"{path}.{key}" if path else str(key), origin)
    elif has_expression(value):
        try:
            yield path, compiled(value, known)
        except ExpressionError as error:
            _refuse_expression(path, value, error, known, origin)


def _paths(
    template: Mapping[str, Any], matrix: Mapping[str, Any], expressions: Mapping[str, Expression], origin: str
) -> list[str]:
    """The keys of the matrix that the cells set; each other one must be in an expression, the name's alone does not count."""
    used = {key for path, expression in expressions.items() if path != "name" for key in expression.keys}
    cls = SPEC_CLASSES[kind_of(template)]
    out = []
    for key in matrix:
        field = field_at(cls, key)
        is_path = "." in key or (field is not None and section_of(field) is None)
        if is_path and not has_expression(get_path(template, key)):
            out.append(key)
        elif key not in used:
            _refuse_unused(key, matrix[key], cls, origin)
    return out


def _refuse_unused(key: str, values: Any, cls: type[Section], origin: str) -> NoReturn:
    paths = [path for path, _ in leaf_paths(cls)]
    found = [path for path in paths if path.rpartition(".")[2] == key] or [nearest(key, paths)]
    meant = f"did you mean {' or '.join(found[:3])}? " if found[0] else ""
    fix = (
        f"{meant}A key of the spec goes by its dotted path (opd.loss_type, seed); any other must be in an expression, "
        f"{{{{ matrix.{key} }}}}, of a value other than `name`"
    )
    rule = "nothing uses this key, so that its cells would be one experiment several times"
    _refuse(f"matrix.{key}", values, rule, fix, origin)


def _fill(value: Any, cell: Mapping[str, Any], expressions: Mapping[str, Expression], path: str, origin: str) -> Any:
    """A copy of the file's tree with every expression's value in its place."""
    if isinstance(value, dict):
        return {
            key: _fill(inner, cell, expressions, f"{path}.{key}" if path else key, origin)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [_fill(inner, cell, expressions, f"{path}.{index}", origin) for index, inner in enumerate(value)]
    if path not in expressions:
        return value
    try:
        return expressions[path].evaluate(cell)
    except ExpressionError as error:
        _refuse_expression(path, value, error, tuple(cell), origin)


def _refuse_expression(path: str, value: Any, error: Exception, known: tuple[str, ...], origin: str) -> NoReturn:
    names = ", ".join(f"matrix.{key}" for key in known)
    _refuse(path, value, f"the expression fails: {error}", f"expressions may use {names}", origin)


def _name(template: Any, filled: Any, cell: Mapping[str, Any]) -> str:
    """The filled name, or the plain one with the cell's values behind it."""
    if has_expression(template):
        return slug(str(filled))
    # A dotted key's last part says enough: opd.loss_type becomes loss-type.
    values = [f"{key.rpartition('.')[2]}-{value}" for key, value in cell.items()]
    return joined([str(filled), *values], distinct=json.dumps(cell, sort_keys=True))


def _refuse(path: str, value: Any, rule: str, fix: str, origin: str) -> NoReturn:
    raise SpecError([Problem(path=path, value=value, rule=rule, fix=fix)], origin=origin)
