"""Reader of YAML and JSON: a plain tree, in which Helm (YAML 1.1) and this package (YAML 1.2) see the same values.

To Helm an unquoted `no` is false, `010` is 8, `1_000` is 1000, and the *key* `n` is "false". The reader rejects such
scalars with "quote it". Elsewhere (`1e-6`, `1:30`) the YAML 1.2 core schema counts.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import yaml

from opd.experiment.base import MAX_INTEGER
from opd.experiment.errors import Problem, SpecError

TRUTH_11 = {"y": "true", "yes": "true", "on": "true", "n": "false", "no": "false", "off": "false"}
WORDS_11 = {w for base in TRUTH_11 for w in (base, base.capitalize(), base.upper())}
_WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= {word: word.lower() == "true" for word in ("true", "True", "TRUE", "false", "False", "FALSE")}
_NUMBER = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_OTHER_11 = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)|[-+]?0[xXoObB][0-9a-fA-F]+|[-+]?0[0-9]+")
_QUOTE_RULE = "YAML 1.1 (Helm) and YAML 1.2 read this unquoted scalar differently, or it is no finite decimal number"
_KEY_RULE = "not every YAML reader has this key as a plain text; merge keys (<<) are not part of YAML 1.2"
_MAX_NODES = 100_000  # aliases of aliases could make a small file any size


class Unreadable(ValueError):
    """A document or an unquoted scalar without a value: `args` are the rule and the fix."""


@dataclass
class Document:
    """A parsed document: the tree (dict, list, str, bool, int, float, None), and `line N` for each dotted path."""

    tree: dict[str, Any]
    sources: dict[str, str] = field(default_factory=dict)


def read_text(text: str, *, origin: str, is_json: bool = False) -> Document:
    """Parse one document whose root is a mapping; SpecError for what readers do not read alike, or not at all."""
    found, tree = _Yaml(), None
    try:
        text.encode()
        as_json = partial(json.loads, parse_int=_number, parse_float=_number, parse_constant=_number)
        tree = as_json(text) if is_json else found.read(text)
    except RecursionError:
        found.refuse("", "the file is nested too deeply")
    except UnicodeEncodeError as error:  # a variable of the environment may hold any bytes
        found.refuse("", "text must be valid Unicode", "remove the stray bytes", value=ascii(text[: error.end][-20:]))
    except Unreadable as error:
        found.problems[:] = [Problem(path="", rule=error.args[0], fix=error.args[1])]
    except ValueError as error:
        found.refuse("", f"the file must be valid JSON: {error}")
    if not found.problems and (not isinstance(tree, dict) or not tree):
        kind = "nothing" if not tree else f"a {type(tree).__name__}"
        found.refuse("", f"the document must be a mapping of keys; found {kind}", "start with `kind: opd`")
    if found.problems:
        raise SpecError(found.problems, origin=origin)
    return Document(cast("dict[str, Any]", tree), found.sources)


def without_nulls(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the tree without nulls, which unset keys as in Helm; below `cluster` they unset defaults of the chart."""
    return {
        key: without_nulls(value) if isinstance(value, dict) and key != "cluster" else value
        for key, value in tree.items()
        if value is not None
    }


def _number(digits: str) -> int | float:
    """Return a number; a whole one up to 2^53 is an int, since Helm's JSON has `1` where the file has `1.0`."""
    value = float(digits)
    if not math.isfinite(value):
        raise Unreadable("a number must be finite", "write a finite number")
    return int(value) if value.is_integer() and abs(value) <= MAX_INTEGER else value


def _scalar(text: str) -> Any:
    """Return the value of one unquoted scalar of YAML."""
    if text in _WORDS:
        return _WORDS[text]
    bare = text.replace("_", "") if text[0] != "_" else text
    is_number = _NUMBER.fullmatch(bare)
    if text in WORDS_11 or _OTHER_11.fullmatch(bare) or (bare != text and is_number):
        truth, quoted = TRUTH_11.get(text.lower()), f'quote it: "{text}"'
        fix = f"write {truth}, or {quoted} for a text" if truth else f"{quoted}, or write a plain decimal"
        raise Unreadable(_QUOTE_RULE, fix)
    if not is_number:
        return text
    digits = text.lstrip("+-")
    if digits.isdigit() and (len(digits) > len(str(MAX_INTEGER)) or int(digits) > MAX_INTEGER):
        rule = f"integers beyond 2^53 ({MAX_INTEGER}) cannot be carried exactly by Helm or JSON"
        raise Unreadable(rule, "use a smaller integer or a string")
    return _number(text)


class _Yaml:
    """One reading of a text by way of its nodes, which still know quotes, explicit tags and lines."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.sources: dict[str, str] = {}
        self.num_nodes = 0

    def refuse(self, path: str, rule: str, fix: str = "", source: str = "", value: object = None) -> None:
        self.problems.append(Problem(path=path, rule=rule, fix=fix, source=source, value=value))

    def read(self, text: str) -> Any:
        try:
            loader: Any = yaml.SafeLoader(text)
            loader.resolve = lambda kind, value, implicit: ""  # a tag that is left is one that the file gives
            node = loader.get_single_node()
        except yaml.YAMLError as error:  # its text would quote the file, and with it perhaps a secret
            parts = [getattr(error, name, None) for name in ("context", "problem", "reason")]
            mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
            source = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
            rule = f"the file must be one document of valid YAML: {' '.join(filter(None, parts))}"
            return self.refuse("", rule, source=source)
        return None if node is None else self._value(node, "")

    def _value(self, node: Any, path: str) -> Any:
        line = f"line {node.start_mark.line + 1}"
        self.num_nodes += 1
        if self.num_nodes > _MAX_NODES:
            raise Unreadable(f"with its aliases the file has more than {_MAX_NODES:,} values", "write fewer aliases")
        if node.tag:
            self.refuse(path, "tags are not read", f"remove {node.tag} and quote the value if it is a string", line)
        if node.id == "mapping":
            return dict(self._items(node, path))
        if node.id == "sequence":
            return [self._value(item, f"{path}.{index}".lstrip(".")) for index, item in enumerate(node.value)]
        try:
            return _scalar(node.value) if node.style is None else node.value
        except Unreadable as error:
            rule, fix = error.args
            return self.refuse(path, rule, fix, line, node.value)

    def _items(self, node: Any, path: str) -> Iterator[tuple[str, Any]]:
        seen: set[str] = set()
        for key, value in node.value:
            line, name = f"line {key.start_mark.line + 1}", key.value if isinstance(key.value, str) else "?"
            child = f"{path}.{name}".lstrip(".")
            if name in seen:
                self.refuse(child, "a key may appear once", f"first seen at {self.sources[child]}: keep one", line)
            elif key.id != "scalar" or (key.style is None and (name == "<<" or not _is_word(name))):
                self.refuse(child, _KEY_RULE, f'quote it: "{name}", or write merged keys out', line)
            seen.add(name)
            self.sources[child] = line
            yield name, self._value(value, child)


def _is_word(text: str) -> bool:
    try:
        return isinstance(_scalar(text), str)
    except Unreadable:
        return False
