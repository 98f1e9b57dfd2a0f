"""Says what a key of the experiment file is, from the schema and the tables of variables and verl's keys."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from opd.config import FILE_KINDS, SPEC_CLASSES, VARIABLES, Kind
from opd.config.defaults import DEFAULTS
from opd.config.errors import nearest
from opd.config.keys import Key, cluster_keys, spec_keys
from opd.config.raw import VERL_KEYS
from opd.config.tree import field_at
from opdctl.errors import usage_error

# The first kind that has a key says what it is; `opd` has most.
_KINDS: tuple[Kind, ...] = ("opd", *(kind for kind in FILE_KINDS if kind != "opd"))


def explain(word: str, *, width: int) -> Iterator[str]:
    """Lines about a key; about every key below a section; about every key that a word stands in.

    Args:
        word: a key, a section, a variable of the original, a key of verl, or a part of a key or of its description.
        width: columns of the screen.

    Raises:
        ToolError: nothing is called so.
    """
    path = word.strip().strip(".").partition("=")[0]
    if (key := _key(path)) is not None:
        yield from _whole(key, width)
        return
    known = _all_keys()
    found = [key for key in known if key.path.startswith(f"{path}.")]
    found = found or [key for key in known if path.lower() in _searched(key)]
    if not path or not found:
        near = nearest(path, list({part for key in known for part in (key.path, *key.path.split("."))}))
        raise usage_error(
            f"nothing is called {word!r}: no key, section or variable, and no part of a description",
            fix=f"did you mean {near}?" if near else "`opdctl explain` alone lists the sections",
        )
    if len(found) == 1:
        yield from _whole(found[0], width)
        return
    for key in found:
        yield from _wrapped(", ".join(filter(None, (key.takes, _default(key)))), width, f"{key.path}  ", "    ")
        yield from _wrapped(_says(key), width, "    ")


def overview(*, width: int) -> Iterator[str]:
    """Lines about what stands at the top of experiment files: a key with what it is for, a section with what it holds."""
    told: dict[str, list[str]] = {}
    for key in _all_keys():
        section, _, rest = key.path.partition(".")
        told.setdefault(section, []).append(rest.partition(".")[0].removesuffix("[]") or _says(key))
    for name, texts in sorted(told.items()):
        yield from _wrapped(", ".join(dict.fromkeys(texts)), width, f"{name}  ", "    ")


def paths() -> list[str]:
    """Every key, with its section."""
    return [key.path for key in _all_keys()]


def _key(path: str) -> Key | None:
    """The key of this path, without a look at other kinds than the first that has it: a schema takes its time."""
    if path.startswith("cluster."):
        return {found.replace("[]", ""): key for found, key in cluster_keys().items()}.get(path.replace("[]", ""))
    kind = next((kind for kind in _KINDS if field_at(SPEC_CLASSES[kind], path) is not None), None)
    found = spec_keys(kind, only=path.partition(".")[0]).get(path) if kind is not None else None
    return found and _of_files(found)


@cache
def _all_keys() -> tuple[Key, ...]:
    found: dict[str, Key] = {}
    for keys in (*map(spec_keys, _KINDS), cluster_keys()):
        found = {**keys, **found}
    return tuple(map(_of_files, found.values()))


def _of_files(key: Key) -> Key:
    """A key as any file has it: of `kind` the schema of one kind knows only its own."""
    if key.path != "kind":
        return key
    node = {"enum": list(_KINDS), "type": "string", "description": key.says}
    return replace(key, node=node, default="", needed="required")


def _whole(key: Key, width: int) -> Iterator[str]:
    path = key.path
    kinds = [
        kind for kind in FILE_KINDS if path.startswith("cluster.") or field_at(SPEC_CLASSES[kind], path) is not None
    ]
    rows = [
        ("type", key.takes),
        ("default", _default(key).removeprefix("default ") or "none"),
        ("what", _says(key)),
        ("kinds", ", ".join(kinds)),
        ("variable", ", ".join(item.name for item in VARIABLES if item.path == path)),
        ("in verl", ", ".join(theirs for theirs, ours in VERL_KEYS if ours == path)),
        ("example", example(key)),
    ]
    yield path
    for name, text in rows:
        if text:
            yield from _wrapped(text, width, f"  {name:9s} ")


def _default(key: Key) -> str:
    text = _computed(key.path) or key.default
    return f"default {text}" if text else key.needed


def _says(key: Key) -> str:
    """The description without the default that the schema adds to it."""
    return key.says.removesuffix(f" Default: {_computed(key.path)}.")


def _computed(path: str) -> str:
    """How a default follows from kind, device and other keys; empty for one that does not."""
    return next((item.says for item in DEFAULTS if item.path == path), "")


def _searched(key: Key) -> str:
    others = [item.name for item in VARIABLES if item.path == key.path]
    others += [theirs for theirs, ours in VERL_KEYS if ours == key.path]
    return " ".join([key.path, key.says, *others]).lower()


def example(key: Key) -> str:
    """The key with a value that it takes, other than its default where it can, as a line of YAML."""
    *above, last = key.path.split(".")
    text = f"{last}: {json.dumps(_value(key.node, last, key.default), ensure_ascii=False)}"
    for name in reversed(above):
        text = f"{name[:-2]}: [{{{text}}}]" if name.endswith("[]") else f"{name}: {{{text}}}"
    return text


def _value(node: dict[str, Any], name: str, default: str) -> Any:
    if "examples" in node:
        return node["examples"][0]
    if "anyOf" in node:
        return _value(node["anyOf"][0], name, default)
    choices = [True, False] if node.get("type") == "boolean" else node.get("enum", [])
    for choice in choices:
        if json.dumps(choice) != default:
            return choice
    if "const" in node or default not in ("", "null", "{}", "[]"):
        return node.get("const") if "const" in node else json.loads(default)
    if node.get("type") == "array":
        return [_value(node.get("items", {}), name, "")]
    if node.get("type") in ("integer", "number"):
        least = max(node.get("minimum", 0), node.get("exclusiveMinimum", 0))
        return max(least, 1) if node["type"] == "integer" else least + 0.5
    if node.get("type") == "string":
        word = re.sub(r"[A-Z_]", lambda match: f"-{match[0].strip('_').lower()}", name)
        pattern = node.get("pattern", "")
        return next(text for text in (word, f"/{word}", "1.0.0", "0" * 64) if re.search(pattern, text))
    fields = node.get("properties", {})
    return {name: _value(fields[name], name, "") for name in node.get("required", ())}


def _wrapped(text: str, width: int, first: str, indent: str | None = None) -> list[str]:
    rest = " " * len(first) if indent is None else indent
    return textwrap.wrap(
        text,
        max(width, 40),
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
