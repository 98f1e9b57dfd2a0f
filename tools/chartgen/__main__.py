"""`python -m chartgen [--check]`: write the charts' values.yaml and values.schema.json, or name the files that differ."""

import argparse
import inspect
import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from opd.experiment import FILE_KINDS, SPEC_CLASSES
from opd.experiment.base import Section
from opd.experiment.cluster import Cluster
from opd.experiment.tree import section_of

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path("charts/opd-lib")
WIDTH = 130
HEADER = """\
# Values of every chart. An experiment file is a values file: its keys, which `opdctl init --keys` describes, and `cluster`.
# Generated from opd.experiment by `make schema`. A key in a comment has no default.
"""
SHORT = ("model", "teacher")
"""Sections that may be one text."""
# `global` is Helm's, `enabled` an umbrella chart's condition, and a template explains why it rejects `matrix`.
STAGES = {"type": "object", "additionalProperties": {"$ref": "#/$defs/experiment"}}
CHARTS_OWN: dict[str, Any] = {"global": {"type": "object"}, "enabled": {"type": "boolean"}, "matrix": {}}


def generated() -> dict[Path, str]:
    """Return each generated file and its text."""
    return {
        FOLDER / "values.yaml": "\n".join([f"{HEADER}env: {{}}\ncluster:", *values_lines(Cluster(), "  ", set()), ""]),
        FOLDER / "values.schema.json": layout(schema()) + "\n",
    }


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the values: types, enumerations and names. Requirements and rules are left to `opd.launch --check`."""
    definitions: dict[str, Any] = {}
    seen: dict[str, dict[str, Any]] = {}  # key at the top -> kind -> schema
    for kind in FILE_KINDS:
        own = SPEC_CLASSES[kind].model_json_schema()
        definitions |= {name: _nullable(_bare(node)) for name, node in own.pop("$defs", {}).items()}
        for name, node in _nullable(_bare(own))["properties"].items():
            seen.setdefault(name, {})[kind] = node
    cluster = Cluster.model_json_schema()
    always = {type(section).__name__ for section in _sections(Cluster())}
    definitions |= {name: _strict(node, always) for name, node in cluster.pop("$defs").items()}
    kinds = {kind: {name: by_kind[kind] for name, by_kind in seen.items() if kind in by_kind} for kind in FILE_KINDS}
    same = {name: _one(by_kind) for name, by_kind in seen.items() if _one(by_kind) is not None}
    definitions["experiment"] = {
        "properties": {**same, "kind": {"enum": list(FILE_KINDS)}, "stages": STAGES},
        "allOf": [
            {
                "if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]},
                "then": {
                    "properties": {name: node for name, node in own.items() if name not in (*same, "kind", "stages")}
                },
            }
            for kind, own in kinds.items()
        ],
    }
    names: dict[str, Any] = {name: {} for name in sorted(seen)}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "additionalProperties": False,
        "required": ["cluster", "env"],
        "properties": {**names, **CHARTS_OWN, "cluster": _strict(cluster, always)},
        "allOf": [{"$ref": "#/$defs/experiment"}],
        "$defs": definitions,
    }


def _one(by_kind: dict[str, Any]) -> Any:
    """Return the schema that all kinds have of a key, None where they differ."""
    first, *others = by_kind.values()
    return first if all(node == first for node in others) else None


def _nullable(node: dict[str, Any]) -> dict[str, Any]:
    """Return a section whose keys all take null, which unsets what another values file gives; nothing is required."""
    if "properties" not in node:
        return node
    out = {key: value for key, value in node.items() if key != "required"}
    out["properties"] = {}
    for name, key in node["properties"].items():
        choices = key.get("anyOf", [key])
        choices = [*choices, *([{"type": "string"}] if name in SHORT else [])]
        out["properties"][name] = {"anyOf": [*choices, *([] if {"type": "null"} in choices else [{"type": "null"}])]}
    return out


def _sections(section: Section) -> Iterator[Section]:
    yield section
    for _, value in section:
        if isinstance(value, Section):
            yield from _sections(value)


def _strict(node: dict[str, Any], always: set[str]) -> dict[str, Any]:
    """Return pydantic's schema without texts. In a section that values.yaml has, what takes no null is required: Helm drops a default for a null."""
    properties = node.get("properties", {})
    out: dict[str, Any] = _bare(node)
    if node["title"] in always:
        out["required"] = [name for name, key in properties.items() if {"type": "null"} not in key.get("anyOf", ())]
    return out


def _bare(node: Any) -> Any:
    if isinstance(node, list):
        return [_bare(item) for item in node]
    if not isinstance(node, dict):
        return node
    texts = ("title", "description", "default", "examples", "properties")
    out = {key: _bare(value) for key, value in node.items() if key not in texts}
    if "properties" in node:  # a key may be called `description` itself
        out["properties"] = {key: _bare(value) for key, value in node["properties"].items()}
    return out


def layout(node: Any, indent: str = "") -> str:
    """Return JSON text in which what fits a line is a line."""
    flat = json.dumps(node)
    if len(indent + flat) <= WIDTH or not isinstance(node, dict | list):
        return flat
    inner = indent + " "
    if isinstance(node, list):
        items = [layout(item, inner) for item in node]
    else:
        items = [f"{json.dumps(key)}: {layout(value, inner)}" for key, value in node.items()]
    below = ",\n".join(inner + item for item in items)
    first, last = "[]" if isinstance(node, list) else "{}"
    return f"{first}\n{below}\n{indent}{last}"


def values_lines(section: Section, indent: str, told: set[type[Section]]) -> Iterator[str]:
    """Yield the lines of a section's keys with their descriptions; a class that is in `told` has them further up."""
    for name, field in type(section).model_fields.items():
        key, value = field.alias or name, getattr(section, name)
        text = (field.description or "").removesuffix(".") if field.description else ""
        is_told = bool({cls for cls in type(section).__mro__ if name in inspect.get_annotations(cls)} & told)
        inner = section_of(field)
        if isinstance(value, Section):
            is_empty = not value.model_dump(exclude_none=True)  # comments alone would be a null
            yield from _described(f"{indent}{key}: {{}}" if is_empty else f"{indent}{key}:", text, indent)
            yield from values_lines(value, indent + "  ", told)
            told |= {cls for cls in type(value).__mro__ if issubclass(cls, Section)}
        elif value is not None:
            shown = json.dumps(to_jsonable_python(value, by_alias=True, exclude_none=True))
            yield from _described(f"{indent}{key}: {shown}", "" if is_told else text, indent)
        elif not is_told:
            keys = ", ".join(item.alias or "" for item in inner.model_fields.values()) if inner else ""
            yield from _described(f"{indent}# {key}: {{{keys}}}" if keys else f"{indent}# {key}:", text, indent)


def _described(line: str, text: str, indent: str) -> list[str]:
    """Return the line with the text after it, or where that is too long with the text above it."""
    if not text:
        return [line]
    if len(line) + len(text) + 5 <= WIDTH:
        return [f"{line}   # {text}"]
    parts = textwrap.wrap(text, WIDTH - len(indent) - 2, break_on_hyphens=False)
    return [*(f"{indent}# {part}" for part in parts), line]


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m chartgen", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a file differs")
    check = parser.parse_args().check
    texts = generated()
    stale = [path for path, text in texts.items() if not (ROOT / path).is_file() or (ROOT / path).read_text() != text]
    for path in stale:
        print(f"{path} differs from opd.experiment: run `make schema`" if check else f"wrote {path}")
        if not check:
            (ROOT / path).write_text(texts[path])
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
