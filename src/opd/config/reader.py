"""Reads YAML and JSON into a plain tree, and refuses what Helm (YAML 1.1) would read differently from us (1.2).

Helm's scalars are YAML 1.1: an unquoted `no` is false, `010` is 8, `1_000` is 1000, and even the *key* `n` becomes "false".
Where the two readings differ, the reader rejects the scalar with "quote it"; elsewhere (`1e-6`, `1:30`) the YAML 1.2 core schema counts.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import Any

from opd.config.base import MAX_INTEGER
from opd.config.errors import Problem, SpecError

MAX_NODES = 100_000  # bound on the expanded document: aliases can blow a small file up without end
_TRUE, _FALSE = {"true", "True", "TRUE"}, {"false", "False", "FALSE"}
_NULL = {"", "~", "null", "Null", "NULL"}
_TRUTH_11 = {"y": "true", "yes": "true", "on": "true", "n": "false", "no": "false", "off": "false"}
WORDS_11 = {w for base in _TRUTH_11 for w in (base, base.capitalize(), base.upper())}
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
# Infinities, prefixed bases and leading zeros.
_OTHER_11 = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)|[-+]?0[xXoObB][0-9a-fA-F]+|[-+]?0[0-9]+")


@dataclass
class Document:
    """A parsed document: the tree (dict, list, str, bool, int, float), and `line N` for each dotted path."""

    tree: dict[str, Any]
    sources: dict[str, str] = field(default_factory=dict)


def read_text(text: str, *, origin: str, is_json: bool = False) -> Document:
    """Parse one document whose root is a mapping.

    Raises:
        SpecError: on a syntax error, an ambiguous scalar, a duplicate key, null, or a number that JSON cannot carry.
            Also on a tag, a merge key, several documents, or a root that is not a mapping.
    """
    found = _Json() if is_json else _Yaml()
    try:
        tree = found.read(text)
    except RecursionError:
        found.refuse("", "the file is nested too deeply")
    if found.problems:
        raise SpecError(found.problems, origin=origin)
    if not isinstance(tree, dict) or not tree:
        kind = "nothing" if not tree else f"a {type(tree).__name__}"
        rule = f"the document must be a mapping of an experiment's keys; found {kind}"
        raise SpecError([Problem(path="", rule=rule, fix="start with `kind: opd`")], origin=origin)
    return Document(tree, found.sources)


def _may_be_null(path: str) -> bool:
    """Return True below `cluster`, where a null unsets what a site file or the chart gives, as Helm does it."""
    return path.startswith("cluster.")


def read_scalar(text: str, path: str, problems: list[Problem], source: str = "") -> Any:
    """Return the value of one unquoted scalar; append a Problem and return None where it may not be used."""

    def refuse(rule: str, fix: str, value: object = text) -> None:
        problems.append(Problem(path=path, value=value, rule=rule, fix=fix, source=source))

    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if text in _NULL and _may_be_null(path):
        return None
    if text in _NULL:
        return refuse("null is not a value", "leave the key out", None)
    plain = text.replace("_", "") if text[0] != "_" else text
    is_number = _INT.fullmatch(plain) or _FLOAT.fullmatch(plain)
    if text in WORDS_11 or _OTHER_11.fullmatch(plain) or (plain != text and is_number):
        rule = "YAML 1.1 (Helm) and YAML 1.2 read this unquoted scalar differently, or it is no finite decimal number"
        truth, quoted = truth_of(text), f'quote it: "{text}"'
        return refuse(
            rule, f"write {truth}, or {quoted} for a text" if truth else f"{quoted}, or write a plain decimal"
        )
    if not is_number:
        return text
    if _INT.fullmatch(text):
        # Python reads no more than 4,300 digits as an integer, and any number of them as a float.
        if abs(float(text)) <= MAX_INTEGER and abs(value := int(text)) <= MAX_INTEGER:
            return value
        rule = f"integers beyond 2^53 ({MAX_INTEGER}) cannot be carried exactly by Helm or JSON"
        return refuse(rule, "use a smaller integer or a string")
    if not math.isfinite(number := float(text)):
        return refuse("a number must be finite", "write a finite number", None)
    return _whole(number)


def truth_of(text: str) -> str:
    """Return `true` or `false` for a word that YAML 1.1 reads so; an empty text for any other."""
    return _TRUTH_11.get(text.lower(), "")


def _whole(value: float) -> int | float:
    """Return a whole number up to 2^53 as an int: JSON written by Helm has `1` where the file has `1.0`."""
    return int(value) if value.is_integer() and abs(value) <= MAX_INTEGER else value


class _Reading:
    """One reading of a text, with the problems found and the line of each key."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.sources: dict[str, str] = {}

    def refuse(self, path: str, rule: str, fix: str = "", source: str = "", value: object = None) -> None:
        self.problems.append(Problem(path=path, rule=rule, fix=fix, source=source, value=value))

    def read(self, text: str) -> Any:
        raise NotImplementedError


class _Json(_Reading):
    """JSON as Helm's toJson writes it: an integer beyond 2^53 there was a float such as 1e16."""

    def read(self, text: str) -> Any:
        try:
            tree = json.loads(
                text,
                object_pairs_hook=self._pairs,
                parse_int=lambda digits: int(digits) if abs(float(digits)) <= MAX_INTEGER else self._number(digits),
                parse_float=self._number,
                parse_constant=self._number,
            )
        except json.JSONDecodeError as error:
            return self.refuse("", f"the file must be valid JSON: {error}")
        self._nulls(tree, "")
        return tree

    def _pairs(self, items: list[tuple[str, Any]]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, value in items:
            if key in out:
                self.refuse(key, "a key may appear once", "remove one of the two")
            out[key] = value
        return out

    def _number(self, digits: str) -> int | float:
        if math.isfinite(value := float(digits)):
            return _whole(value)
        self.refuse("", "a number must be finite", "write a finite number", value=digits)
        return 0

    def _nulls(self, tree: Any, path: str) -> None:
        if isinstance(tree, dict | list):
            for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
                self._nulls(value, f"{path}.{key}" if path else str(key))
        elif tree is None and not _may_be_null(path):
            self.refuse(path, "null is not a value", "leave the key out")


class _Yaml(_Reading):
    """YAML by way of its nodes, which still know quotes, explicit tags and lines."""

    num_nodes = 0

    def read(self, text: str) -> Any:
        import yaml

        try:
            loader: Any = yaml.SafeLoader(text)
            loader.resolve = lambda kind, value, implicit: ""  # a tag that is left is one that the file gives
            node = loader.get_single_node()
        except yaml.MarkedYAMLError as error:  # its text would quote the file, and with it perhaps a secret
            mark = error.problem_mark or error.context_mark
            reason = " ".join(part for part in (error.context, error.problem) if part)
            source = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
            if reason.startswith("expected a single document"):
                return self.refuse("", "the file must hold one document", "split it into two files", source)
            return self.refuse("", f"the file must be valid YAML: {reason}", source=source)
        except yaml.YAMLError as error:
            return self.refuse("", f"the file must be valid YAML: {getattr(error, 'reason', 'it cannot be read')}")
        return None if node is None else self._value(node, "")

    def _value(self, node: Any, path: str) -> Any:
        line = f"line {node.start_mark.line + 1}"
        self.sources.setdefault(path, line)
        self.num_nodes += 1
        if self.num_nodes > MAX_NODES:
            if self.num_nodes == MAX_NODES + 1:
                self.refuse(path, f"the expanded document has more than {MAX_NODES} values", "use fewer aliases", line)
            return None
        if node.tag:
            self.refuse(path, "tags are not read", f"remove {node.tag} and quote the value if it is a string", line)
        if node.id == "scalar":
            return node.value if node.style is not None else read_scalar(node.value, path, self.problems, line)
        if node.id == "sequence":
            return [self._value(item, f"{path}.{index}".lstrip(".")) for index, item in enumerate(node.value)]
        return self._mapping(node, path)

    def _mapping(self, node: Any, path: str) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key_node, value in node.value:
            line = f"line {key_node.start_mark.line + 1}"
            key = self._key(key_node, path, line)
            child = f"{path}.{key or '?'}".lstrip(".")
            if key in out:
                self.refuse(child, "a key may appear once", f"first seen at {self.sources[child]}: keep one", line)
            self.sources[child] = line
            found = self._value(value, child)
            if key is not None:
                out[key] = found
        return out

    def _key(self, node: Any, path: str, line: str) -> str | None:
        text = node.value
        child = f"{path}.{text if isinstance(text, str) else '?'}".lstrip(".")
        if node.id != "scalar":
            self.refuse(child, "a key must be a plain string", "write a simple key", line)
        elif node.style is None and text == "<<":
            self.refuse(child, "merge keys (<<) are not part of YAML 1.2", "write the keys out", line)
        elif node.style is None and not isinstance(read_scalar(text, child, []), str):
            number = "; the number of samples is `num_samples`" if text in {"n", "N"} else ""
            rule = f"the unquoted key `{text}` is not a string for every YAML reader"
            self.refuse(child, rule, f'quote it: "{text}"{number}', line)
        else:
            return str(text)
        return None
