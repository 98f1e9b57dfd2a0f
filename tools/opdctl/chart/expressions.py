"""A sweep's expressions, `{{ matrix.lr * 10 }}`: which keys of the matrix one names, and its value within bounds.

An expression is arithmetic, comparison, choice and text over the cell's values. It has no loops, and every step's result is
bounded, so that a file from anywhere is refused in an instant where it would compute for ever or fill the memory.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from jinja2 import StrictUndefined, TemplateError, nodes
from jinja2.filters import FILTERS
from jinja2.sandbox import SandboxedEnvironment

from opd.config.errors import nearest
from opd.config.tree import set_path

MAX_TEXT_CHARS = 1000
MAX_INTEGER_BITS = 1024
_LONE = re.compile(r"\{\{(?P<expression>(?:(?!\}\}|\{\{).)*)\}\}", re.DOTALL)
_WIDE_FORMAT = re.compile(r"\d{3,}|\*")
_NODES = tuple(
    getattr(nodes, name)
    for name in [
        "Template",
        "Output",
        "TemplateData",
        "If",
        "Const",
        "Name",
        "Getattr",
        "Getitem",
        "Slice",
        "List",
        "Tuple",
        "BinExpr",
        "UnaryExpr",
        "Compare",
        "Operand",
        "CondExpr",
        "Concat",
        "Filter",
        "Call",
        "Keyword",
    ]
)
_METHODS = ("lower", "upper", "title", "split", "rsplit", "strip", "lstrip", "rstrip", "replace", "removeprefix",
            "removesuffix", "startswith", "endswith")  # fmt: skip
_CALLS = f"the only calls are those of texts: {', '.join(_METHODS)}"
_FILTERS = ("abs", "capitalize", "default", "first", "float", "format", "int", "join", "last", "length", "lower", "max",
            "min", "replace", "round", "string", "sum", "title", "trim", "truncate", "upper")  # fmt: skip
# What evaluating a well-formed expression may raise: a wrong key, type, value or operand, a division by zero.
_FAILURES = (TemplateError, ArithmeticError, TypeError, ValueError, LookupError, AttributeError, RecursionError)


class ExpressionError(ValueError):
    """An expression that cannot be used; the text says why."""


@dataclass(frozen=True)
class Expression:
    """One text with expressions; `keys` are the keys of the matrix that it names."""

    keys: frozenset[str]
    evaluate: Callable[[Mapping[str, Any]], Any]


def has_expression(value: Any) -> bool:
    """Whether a value of the file is a text with `{{ ... }}`."""
    return isinstance(value, str) and "{{" in value


@functools.cache
def compiled(text: str, known: tuple[str, ...]) -> Expression:
    """The expression behind a text; a lone `{{ ... }}` keeps its value's type, anything else stays a text.

    Args:
        known: the keys of the matrix, `opd.loss_type` among them.

    Raises:
        ExpressionError: it is malformed, names an unknown key, or uses what expressions have not.
    """
    try:
        tree = _ENVIRONMENT.parse(text)
        keys = frozenset(_keys(tree, known))
        lone = _LONE.fullmatch(text.strip())
        if lone is None:
            template = _ENVIRONMENT.from_string(text)
            return Expression(keys, lambda cell: _value(lambda: template.render(matrix=_namespace(cell))))
        expression = _ENVIRONMENT.compile_expression(lone["expression"], undefined_to_none=False)
        return Expression(keys, lambda cell: _value(lambda: expression(matrix=_namespace(cell))))
    except _FAILURES as error:
        raise ExpressionError(_words(error)) from error


def _keys(node: nodes.Node, known: Sequence[str]) -> list[str]:
    """The keys of the matrix that a syntax tree names; refuses every node that expressions have not."""
    if path := _path(node):
        found = [key for key in known if path == key or path.startswith(f"{key}.")]
        if not found:
            near = nearest(path, known)
            raise ExpressionError(f"the matrix has no key {path}" + (f": did you mean {near}?" if near else ""))
        return found
    if isinstance(node, nodes.Name):
        raise ExpressionError(
            f"{node.name} is not known: an expression sees one key of the matrix at a time, matrix.KEY"
        )
    what = node.name if isinstance(node, nodes.Filter) else node.attr if isinstance(node, nodes.Getattr) else ""
    is_refused = what.startswith("_") or (isinstance(node, nodes.Filter) and what not in _FILTERS)
    if is_refused or not isinstance(node, _NODES):
        raise ExpressionError(f"{what or type(node).__name__.lower()} is not among what expressions may use")
    if isinstance(node, nodes.Call):
        method = node.node
        if not isinstance(method, nodes.Getattr) or method.attr not in _METHODS:
            raise ExpressionError(_CALLS)
        children = [method.node, *node.args, *node.kwargs]
    else:
        children = list(node.iter_child_nodes())
    return [key for child in children for key in _keys(child, known)]


def _path(node: nodes.Node) -> str:
    """`opd.loss_type` of `matrix.opd.loss_type` and `matrix['opd.loss_type']`; empty for anything else."""
    if isinstance(node, nodes.Getattr):
        parent, key = node.node, node.attr
    elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str):
        parent, key = node.node, node.arg.value
    else:
        return ""
    if isinstance(parent, nodes.Name) and parent.name == "matrix":
        return key
    above = _path(parent)
    return f"{above}.{key}" if above else ""


def _namespace(cell: Mapping[str, Any]) -> Any:
    """The cell as attributes, which no expression can change; dotted keys also as attributes of attributes."""
    tree: dict[str, Any] = {}
    for key, value in cell.items():
        set_path(tree, key, value)

    def frozen(inner: Any) -> Any:
        return SimpleNamespace(**{k: frozen(v) for k, v in inner.items()}) if isinstance(inner, dict) else inner

    return SimpleNamespace(**{**{key: frozen(value) for key, value in tree.items()}, **cell})


def _value(evaluate: Callable[[], Any]) -> Any:
    try:
        found = evaluate()
        str(found)  # StrictUndefined complains when it is looked at
    except _FAILURES as error:
        raise ExpressionError(_words(error)) from error
    is_plain = isinstance(found, bool | int | str) or (isinstance(found, float) and math.isfinite(found))
    if not is_plain:
        raise ExpressionError("its value is neither a number, a truth value nor a text")
    return _bounded(found)


def _words(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error) or type(error).__name__


def _bounded(value: Any) -> Any:
    """A result of any step, refused where it is too large to go on with."""
    if isinstance(value, str | list | tuple) and len(value) > MAX_TEXT_CHARS:
        raise ExpressionError(f"a text or list grows beyond {MAX_TEXT_CHARS} characters or items")
    if isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
        raise ExpressionError(f"a number grows beyond {MAX_INTEGER_BITS} bits")
    return value


def _check_operands(operator: str, left: Any, right: Any) -> None:
    """Refuse what would already be too large to compute."""
    are_integers = isinstance(left, int) and isinstance(right, int)
    if operator == "**" and are_integers and left.bit_length() * max(right, 0) > MAX_INTEGER_BITS:
        raise ExpressionError(f"a power with more than {MAX_INTEGER_BITS} bits")
    if operator == "*" and not are_integers:
        for sequence, times in ((left, right), (right, left)):
            is_repeated = isinstance(sequence, str | list | tuple) and isinstance(times, int)
            if is_repeated and len(sequence) * times > MAX_TEXT_CHARS:
                raise ExpressionError(f"a text or list grows beyond {MAX_TEXT_CHARS} characters or items")
    if operator == "%" and isinstance(left, str):
        _check_format(left)


def _check_format(text: str) -> None:
    if _WIDE_FORMAT.search(text):
        raise ExpressionError(f"the format {text!r} has a width of more than 99")


class _Bounded(SandboxedEnvironment):
    """Jinja2's sandbox with bounds on every operator, call and filter."""

    intercepted_binops = frozenset(SandboxedEnvironment.default_binop_table)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        _check_operands(operator, left, right)
        return _bounded(super().call_binop(context, operator, left, right))

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(getattr(__obj, "__self__", None), str):
            raise ExpressionError(_CALLS)
        return _bounded(super().call(__context, __obj, *args, **kwargs))


def _bounded_filter(name: str) -> Callable[..., Any]:
    function = FILTERS[name]

    @functools.wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        if name == "format":
            _check_format(str(args[0]))
        if any(isinstance(item, int) and item > MAX_TEXT_CHARS for item in (*args[1:], *kwargs.values())):
            raise ExpressionError(f"{name} takes no number above {MAX_TEXT_CHARS}")
        return _bounded(function(*args, **kwargs))

    return bounded


_ENVIRONMENT = _Bounded(undefined=StrictUndefined, keep_trailing_newline=True)
_ENVIRONMENT.filters = {name: _bounded_filter(name) for name in _FILTERS}
