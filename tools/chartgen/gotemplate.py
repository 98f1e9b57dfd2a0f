"""Translates the expressions of `opd.config.expressions` into Go templates, as Helm evaluates them.

Keys are read from `$v`, the items of a loop from `$item` and `$index`. Helm's numbers are floats wherever JSON was between, so
numbers are compared as floats, and text with text.
"""

from __future__ import annotations

import ast
import json

from opd.config.expressions import FUNCTIONS

LOOP = ("index", "item")
_FUNCTIONS = {
    "ceil": "(ceil {0})",
    "ceil_div": "(div (sub (add {0} {1}) 1) {1})",
    "contains": "(contains {1} (toString {0}))",
    "keys": "(keys {0} | sortAlpha)",
    "len": "(len {0})",
    "matches": "(regexMatch {1} (toString {0}))",
    "max": "(maxf {0} {1})",
    "quantity": '(include "opd.quantity" {0})',
    "starts_with": "(hasPrefix {1} (toString {0}))",
}
assert _FUNCTIONS.keys() == FUNCTIONS.keys()
_ARITHMETIC: dict[type[ast.AST], str] = {
    ast.Add: "addf",
    ast.Sub: "subf",
    ast.Mult: "mulf",
    ast.FloorDiv: "div",
    ast.Mod: "mod",
}
_ORDER: dict[type[ast.AST], str] = {ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge"}
_EQUALITY: dict[type[ast.AST], str] = {ast.Eq: "eq", ast.NotEq: "ne"}


def go(node: ast.expr) -> str:
    """The expression as one operand of a Go template.

    Raises:
        TypeError: it has a part that the language does not.
    """
    match node:
        case ast.Constant(value=value):
            return json.dumps(value, ensure_ascii=False)
        case ast.Name(id=name):
            return f"${name}" if name in LOOP else f"$v.{name}"
        case ast.Attribute(value=value, attr=name):
            return f"({go(value)}).{name}"  # in parentheses what is missing has nothing below it, and is no error
        case ast.Subscript(value=value, slice=key):
            return f"(index {go(value)} {go(key)})"
        case ast.Tuple(elts=items):
            return _call("list", *map(go, items))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _call("not", go(operand))
        case ast.BoolOp(op=op, values=values):
            return _call("or" if isinstance(op, ast.Or) else "and", *map(go, values))
        case ast.BinOp(left=left, op=op, right=right):
            return _call(_ARITHMETIC[type(op)], go(left), go(right))
        case ast.Compare(left=left, ops=ops, comparators=others):
            parts = [_compared(a, op, b) for a, op, b in zip([left, *others], ops, others, strict=False)]
            return parts[0] if len(parts) == 1 else _call("and", *parts)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            is_bool = isinstance(test, ast.Compare) and len(test.ops) == 1
            return _call("ternary", go(body), go(orelse), go(test) if is_bool else f"(not (not {go(test)}))")
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return _FUNCTIONS[name].format(*map(go, arguments))
        case ast.JoinedStr(values=parts):
            return _text(parts)
    raise TypeError(f"{ast.unparse(node)}: no part of the language of rules")


def bare(node: ast.expr) -> str:
    """The expression as the pipeline of an `if` or `range`: `go` without the outer parentheses."""
    text = go(node)
    return text if isinstance(node, ast.Name | ast.Attribute | ast.Constant) else text[1:-1]


def _call(name: str, *arguments: str) -> str:
    return f"({' '.join([name, *arguments])})"


def _compared(left: ast.expr, op: ast.cmpop, right: ast.expr) -> str:
    if isinstance(op, ast.Is | ast.IsNot):  # None is all that anything is compared with by identity
        found = _call("kindIs", '"invalid"', go(left))
        return found if isinstance(op, ast.Is) else _call("not", found)
    if isinstance(op, ast.In | ast.NotIn):
        found = _call("has", f"(toString {go(left)})", go(right))
        return found if isinstance(op, ast.In) else _call("not", found)
    if type(op) in _ORDER:
        return _call(_ORDER[type(op)], *_cast("float64", left, right))
    literals = [side.value for side in (left, right) if isinstance(side, ast.Constant)]
    as_text = any(isinstance(value, str) for value in literals)
    sides = _cast("toString" if as_text else "float64", left, right) if literals else [go(left), go(right)]
    return _call(_EQUALITY[type(op)], *sides)


def _cast(name: str, *sides: ast.expr) -> list[str]:
    return [_literal(side.value) if isinstance(side, ast.Constant) else _call(name, go(side)) for side in sides]


def _literal(value: object) -> str:
    return json.dumps(value if isinstance(value, str) else float(str(value)), ensure_ascii=False)


def _text(parts: list[ast.expr]) -> str:
    """`printf` of a message; text without expressions is a literal."""
    if all(isinstance(part, ast.Constant) for part in parts):
        return go(ast.Constant("".join(str(part.value) for part in parts if isinstance(part, ast.Constant))))
    form, arguments = "", []
    for part in parts:
        if isinstance(part, ast.FormattedValue):
            form += "%s"
            arguments.append(f'(include "opd.text" {go(part.value)})')
        elif isinstance(part, ast.Constant):
            form += str(part.value).replace("%", "%%")
    return _call("printf", go(ast.Constant(form)), *arguments)
