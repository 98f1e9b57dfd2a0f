"""Evaluates small expressions over the keys of an experiment file, in which the rules between keys are written.

They have Python's syntax: dotted keys, literals, arithmetic, comparisons, `and`, `or`, `not`, `A if B else C`, `map["key"]` and
`FUNCTIONS`. A key without a value is None. `tools/chartgen` translates the same expressions for the charts.
"""

from __future__ import annotations

import ast
import json
import math
import operator
import re
from collections.abc import Callable
from functools import cache
from typing import Any

from opd.config.quantity import number

Get = Callable[[str], Any]
"""Gives the value of a dotted key."""

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "ceil": math.ceil,
    "ceil_div": lambda number, by: -(-number // by),
    "contains": lambda text, part: part in text,
    "keys": sorted,
    "len": len,
    "matches": lambda text, pattern: re.search(pattern, text) is not None,
    "max": max,
    "quantity": number,
    "starts_with": str.startswith,
}

_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}


@cache
def parse(text: str) -> ast.expr:
    """The tree of an expression."""
    return ast.parse(text, mode="eval").body


def parse_message(text: str) -> ast.JoinedStr:
    """The tree of a text with expressions in braces, as in an f-string."""
    node = parse(f'f"""{text}"""')
    assert isinstance(node, ast.JoinedStr)
    return node


def evaluate(node: ast.expr, get: Get) -> Any:
    """The value of an expression.

    Raises:
        TypeError: the expression has a part that the language does not.
    """

    def of(part: ast.expr) -> Any:
        return evaluate(part, get)

    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name() | ast.Attribute():
            return get(ast.unparse(node))
        case ast.Subscript(value=value, slice=key):
            return of(value).get(of(key))
        case ast.Tuple(elts=items):
            return [of(item) for item in items]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not of(operand)
        case ast.BoolOp(op=op, values=values):
            for part in values[:-1]:
                if bool(value := of(part)) == isinstance(op, ast.Or):
                    return value
            return of(values[-1])
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](of(left), of(right))
        case ast.Compare(left=left, ops=ops, comparators=others):
            return all(
                _OPERATORS[type(op)](of(a), of(b)) for a, op, b in zip([left, *others], ops, others, strict=False)
            )
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return of(body) if of(test) else of(orelse)
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return FUNCTIONS[name](*map(of, arguments))
        case ast.JoinedStr(values=parts):
            return "".join(of(part) for part in parts)
        case ast.FormattedValue(value=value):
            return shown(of(value))
    raise TypeError(f"{ast.unparse(node)}: no part of the language of rules")


def shown(value: object) -> str:
    """A value in a message as the charts show it: text bare, all else as JSON, whole numbers without a point."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
