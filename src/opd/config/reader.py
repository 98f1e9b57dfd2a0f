"""Reads YAML and JSON into a plain tree, and refuses what Helm (YAML 1.1) would read differently from us (1.2).

Helm reads values through sigs.k8s.io/yaml, whose scalars are YAML 1.1: an unquoted `no` is false, `010` is 8, `1_000` is
1000, and even the *key* `n` becomes "false". Where the two readings differ, the scalar is refused with "quote it";
where they agree (`1e-6`, `1.0`, `1:30`, `2001-01-01`) it is read by the YAML 1.2 core schema.
"""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from opd.config.errors import Problem, SpecError

MAX_INTEGER = 2**53  # beyond it a float64, and so Helm and JSON, cannot hold every integer
MAX_NODES = 100_000  # bound on the expanded document: aliases can blow a small file up without end

_TRUE = {"true", "True", "TRUE"}
_FALSE = {"false", "False", "FALSE"}
_NULL = {"", "~", "null", "Null", "NULL"}
_TRUTH_11 = {"y": "true", "yes": "true", "on": "true", "n": "false", "no": "false", "off": "false"}
_WORDS_11 = {w for base in _TRUTH_11 for w in (base, base.capitalize(), base.upper())}
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NON_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_PREFIXED = re.compile(r"[-+]?0[xXoObB][0-9a-fA-F]+")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")


@dataclass
class Document:
    """A parsed document: the tree (dict, list, str, bool, int, float), and `line N` for each dotted path."""

    tree: dict[str, Any]
    sources: dict[str, str] = field(default_factory=dict)


def read_text(text: str, *, origin: str, is_json: bool = False) -> Document:
    """Parse one document whose root is a mapping.

    Raises:
        SpecError: on a syntax error, an ambiguous scalar, a duplicate key, null, an integer beyond 2^53, a number that is
            not finite, a tag, a merge key, several documents, or a root that is not a mapping.
    """
    problems: list[Problem] = []
    sources: dict[str, str] = {}
    tree = _read_json(text, problems) if is_json else _read_yaml(text, problems, sources)
    if problems:
        raise SpecError(problems, origin=origin)
    if not isinstance(tree, dict) or not tree:
        found = "nothing" if not tree else f"a {type(tree).__name__}"
        rule = f"the document must be a mapping of an experiment's keys; found {found}"
        raise SpecError([Problem(path="", rule=rule, fix="start with `kind: opd`")], origin=origin)
    return Document(tree, sources)


def read_scalar(text: str, path: str, problems: list[Problem], source: str = "") -> Any:
    """The value of one unquoted scalar; appends a Problem and returns None where it may not be used."""
    fix = f'quote it: "{text}"'
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if text in _NULL:
        problems.append(Problem(path=path, rule="null is not a value", fix="leave the key out", source=source))
        return None
    plain = text.replace("_", "")
    numeric = _INT.fullmatch(text) or _FLOAT.fullmatch(text)
    surely_number = _NON_FINITE.fullmatch(text) or _PREFIXED.fullmatch(plain) or _LEADING_ZERO.fullmatch(plain)
    underscored = plain != text and plain[:1] != "_" and (_INT.fullmatch(plain) or _FLOAT.fullmatch(plain))
    if text in _WORDS_11 or surely_number or (underscored and text[0] != "_"):
        rule = "YAML 1.1 (Helm) and YAML 1.2 read this unquoted scalar differently, or it is no finite decimal number"
        truth = truth_of(text)
        fix = f"write {truth}, or {fix} for a text" if truth else f"{fix}, or write a plain decimal"
        problems.append(Problem(path=path, value=text, rule=rule, fix=fix, source=source))
        return None
    if not numeric:
        return text
    if _INT.fullmatch(text):
        return _integer(int(text), text, path, problems, source)
    return _number(float(text), path, problems, source)


def truth_of(text: str) -> str:
    """`true` or `false` for a word that YAML 1.1 reads so; empty for any other text."""
    return _TRUTH_11.get(text.lower(), "")


def _integer(value: int, text: str, path: str, problems: list[Problem], source: str) -> int | None:
    if abs(value) <= MAX_INTEGER:
        return value
    rule = f"integers beyond 2^53 ({MAX_INTEGER}) cannot be carried exactly by Helm or JSON"
    problems.append(Problem(path=path, value=text, rule=rule, fix="use a smaller integer or a string", source=source))
    return None


def _number(value: float, path: str, problems: list[Problem], source: str) -> int | float | None:
    """A float, as an int where it is a whole number up to 2^53: JSON written by Helm has `1` where the file has `1.0`."""
    if not math.isfinite(value):
        problems.append(Problem(path=path, rule="a number must be finite", fix="write a finite number", source=source))
        return None
    return int(value) if value.is_integer() and abs(value) <= MAX_INTEGER else value


def _read_json(text: str, problems: list[Problem]) -> Any:
    """JSON as Helm's toJson writes it: an integer beyond 2^53 there was a float such as 1e16."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, value in items:
            if key in out:
                problems.append(Problem(path=key, rule="a key may appear once", fix="remove one of the two"))
            out[key] = value
        return out

    def integer(digits: str) -> int | float:
        value = int(digits) if len(digits) <= 20 else 2**63
        return value if abs(value) <= MAX_INTEGER else number(digits)

    def number(digits: str) -> int | float:
        value = _number(float(digits), "", problems, "")
        return 0 if value is None else value  # refused above; 0 keeps it from being refused as null, too

    def constant(name: str) -> int:
        problems.append(Problem(path="", value=name, rule="a number must be finite", fix="write a finite number"))
        return 0

    try:
        tree = json.loads(text, object_pairs_hook=pairs, parse_int=integer, parse_float=number, parse_constant=constant)
        problems += _nulls(tree)
        return tree
    except json.JSONDecodeError as error:
        problems.append(Problem(path="", rule=f"the file must be valid JSON: {error}"))
    except RecursionError:
        problems.append(Problem(path="", rule="the file is nested too deeply"))
    return None


def _nulls(tree: Any, path: str = "") -> Iterator[Problem]:
    if isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _nulls(value, f"{path}.{key}" if path else str(key))
    elif tree is None:
        yield Problem(path=path, rule="null is not a value", fix="leave the key out")


def _read_yaml(text: str, problems: list[Problem], sources: dict[str, str]) -> Any:
    import yaml

    try:
        return _Builder(problems, sources).document(iter(yaml.parse(text, Loader=yaml.SafeLoader)))
    except yaml.MarkedYAMLError as error:  # its text would quote the file, and with it perhaps a secret
        mark = error.problem_mark or error.context_mark
        what = " ".join(part for part in (error.context, error.problem) if part)
        source = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problems.append(Problem(path="", rule=f"the file must be valid YAML: {what}", source=source))
    except yaml.YAMLError as error:
        reason = getattr(error, "reason", "it cannot be read")
        problems.append(Problem(path="", rule=f"the file must be valid YAML: {reason}"))
    except RecursionError:
        problems.append(Problem(path="", rule="the file is nested too deeply"))
    return None


class _Builder:
    """Builds the tree from yaml events, which (unlike nodes) still know quotes and explicit tags."""

    def __init__(self, problems: list[Problem], sources: dict[str, str]) -> None:
        self.problems = problems
        self.sources = sources
        self.anchors: dict[str, tuple[Any, int]] = {}
        self.num_nodes = 0

    def document(self, events: Iterator[Any]) -> Any:
        tree: Any = None
        num_documents = 0
        for event in events:
            kind = type(event).__name__
            if kind == "DocumentStartEvent":
                num_documents += 1
                if num_documents > 1:
                    self._refuse("", event, "the file must hold one document", "split it into two files")
                    return None
                tree = self.value(next(events), events, "")
        return tree

    def value(self, event: Any, events: Iterator[Any], path: str) -> Any:
        kind = type(event).__name__
        self.sources.setdefault(path, f"line {event.start_mark.line + 1}")
        if kind == "AliasEvent":
            return self._alias(event, path)
        before = self.num_nodes
        self._count(path, event, 1)
        if event.tag is not None:
            self._refuse(path, event, "tags are not read", f"remove {event.tag} and quote the value if it is a string")
        if kind == "ScalarEvent":
            plain = event.style is None
            source = f"line {event.start_mark.line + 1}"
            out = read_scalar(event.value, path, self.problems, source) if plain else event.value
        elif kind == "MappingStartEvent":
            out = self._mapping(events, path)
        else:
            out = self._sequence(events, path)
        if event.anchor is not None:
            self.anchors[event.anchor] = (out, self.num_nodes - before)
        return out

    def _mapping(self, events: Iterator[Any], path: str) -> dict[str, Any]:
        out: dict[str, Any] = {}
        while type(event := next(events)).__name__ != "MappingEndEvent":
            key = self._key(event, events, path)
            child = f"{path}.{key}" if path else str(key)
            if key in out:
                self._refuse(child, event, "a key may appear once", f"first seen at {self.sources[child]}: keep one")
            self.sources[child] = f"line {event.start_mark.line + 1}"
            value = self.value(next(events), events, child)
            if key is not None:
                out[key] = value
        return out

    def _key(self, event: Any, events: Iterator[Any], path: str) -> str | None:
        where = f"{path}.?" if path else "?"
        if type(event).__name__ != "ScalarEvent":
            self._refuse(where, event, "a key must be a plain string", "write a simple key")
            if type(event).__name__ != "AliasEvent":
                self.value(event, events, where)
            return None
        text: str = event.value
        if event.style is not None:
            return text
        if text == "<<":
            self._refuse(where, event, "merge keys (<<) are not part of YAML 1.2", "write the keys out")
            return None
        child = f"{path}.{text}" if path else text
        found: list[Problem] = []
        if isinstance(read_scalar(text, child, found), str):
            return text
        self._refuse(child, event, f"the unquoted key `{text}` is not a string for every YAML reader", _key_fix(text))
        return None

    def _sequence(self, events: Iterator[Any], path: str) -> list[Any]:
        out: list[Any] = []
        while type(event := next(events)).__name__ != "SequenceEndEvent":
            out.append(self.value(event, events, f"{path}.{len(out)}" if path else str(len(out))))
        return out

    def _alias(self, event: Any, path: str) -> Any:
        if event.anchor not in self.anchors:
            self._refuse(path, event, "an alias must name an anchor that is complete before it", "write it out")
            return None
        value, size = self.anchors[event.anchor]
        self._count(path, event, size)
        # A copy, so that `--set` in one place changes no other; a document that is refused for its size is not expanded.
        return copy.deepcopy(value) if self.num_nodes <= MAX_NODES else value

    def _count(self, path: str, event: Any, num: int) -> None:
        was_within = self.num_nodes <= MAX_NODES
        self.num_nodes += num
        if was_within and self.num_nodes > MAX_NODES:
            self._refuse(path, event, f"the expanded document has more than {MAX_NODES} values", "use fewer aliases")

    def _refuse(self, path: str, event: Any, rule: str, fix: str) -> None:
        self.problems.append(Problem(path=path, rule=rule, fix=fix, source=f"line {event.start_mark.line + 1}"))


def _key_fix(text: str) -> str:
    quoted = f'quote it: "{text}"'
    return f"{quoted}; the number of samples is `num_samples`" if text in {"n", "N"} else quoted
