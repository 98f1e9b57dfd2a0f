"""Defines a rule between keys: one row of the tables that the validator reads and that the charts' rules are generated from."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from opd.config.base import KINDS, Kind
from opd.config.errors import Problem
from opd.config.expressions import Get, evaluate, parse, parse_message
from opd.config.refusals import redact


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What a file may not say, in the language of `opd.config.expressions`.

    Attributes:
        key: the key that a problem names. It, `rule` and `fix` may hold expressions in braces, as f-strings do.
        when: the rule is broken where this is true.
        rule: the sentence that is broken.
        fix: what to write instead.
        kinds: kinds of experiment that the rule is about, of those that its table is for.
        value: an expression for the value to show; unset: the value of `key`.
        each: an expression for a list: the rule is about each `item` of it, at `index`.
        chart_only: the tool reads files before this is known.
    """

    key: str
    when: str
    rule: str
    fix: str
    kinds: tuple[Kind, ...] = KINDS
    value: str | None = None
    each: str | None = None
    chart_only: bool = False


def with_named(tree: dict[str, Any], expressions: Mapping[str, str]) -> dict[str, Any]:
    """The tree with the expressions' values beside its own keys; each expression may use those before it."""
    tree = dict(tree)
    for name, text in expressions.items():
        tree[name] = evaluate(parse(text), _values(tree))
    return tree


def broken(rules: Iterable[Rule], tree: Mapping[str, Any]) -> Iterator[Problem]:
    """A problem for each rule that the tree breaks, in the order of the rules.

    Args:
        rules: rows of a table; those of other kinds are passed over.
        tree: an experiment with every default filled in, and the names that the rules use beside its keys.
    """
    for rule in rules:
        if tree["kind"] not in rule.kinds:
            continue
        items = [None] if rule.each is None else evaluate(parse(rule.each), _values(tree))
        for index, item in enumerate(items):
            get = _values({**tree, "index": index, "item": item})
            if evaluate(parse(rule.when), get):
                key, sentence, fix = (evaluate(parse_message(text), get) for text in (rule.key, rule.rule, rule.fix))
                value = evaluate(parse(key if rule.value is None else rule.value), get)
                yield Problem(path=key, value=redact(value), rule=sentence, fix=fix)


def keys_read(text: str, named: Mapping[str, str]) -> set[str]:
    """The dotted keys that an expression reads, also by way of the rules' own names for sizes."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Name | ast.Attribute):
            name = ast.unparse(node)
            found.update(keys_read(named[name], named) if name in named else {name})
            return
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(parse(text))
    return found


def _values(tree: Mapping[str, Any]) -> Get:
    def get(path: str) -> Any:
        value: Any = tree
        for name in path.split("."):
            value = None if value is None else value.get(name)
        return value

    return get
