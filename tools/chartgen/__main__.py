"""`python -m chartgen [--check]`: write the charts' values.yaml and values.schema.json, or name the files that differ."""

import argparse
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from opd.experiment import FILE_KINDS, SPEC_CLASSES
from opd.experiment.base import Section
from opd.experiment.cluster import Cluster
from opd.experiment.tree import section_of

WIDTH = 130
FOLDER = Path(__file__).resolve().parents[2] / "charts" / "opd-lib"
HEADER = """\
# Values of every chart. An experiment file is a values file: its keys, which `opdctl keys` describes, and `cluster`.
# Generated from opd.experiment by `make schema`. A key in a comment has no default.
env: {}
cluster:
"""
SHORT = ("model", "teacher")
"""Sections that may be one text."""
NULL = {"type": "null"}
STAGES = {"type": "object", "additionalProperties": {"$ref": "#/$defs/experiment"}}
# `global` is Helm's, `enabled` an umbrella chart's condition, and a template explains why it rejects `matrix`.
CHARTS_OWN: dict[str, Any] = {"global": {"type": "object"}, "enabled": {"type": "boolean"}, "matrix": {}}


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the values: types, enumerations and names. Requirements and rules are left to `opd.launch --check`."""
    definitions: dict[str, Any] = {}
    for kind in FILE_KINDS:
        own = _bare(SPEC_CLASSES[kind].model_json_schema())
        definitions |= {name: _nullable(node) for name, node in own.pop("$defs", {}).items()}
        keys = _nullable(own)["properties"]
        definitions[kind] = {"properties": {name: keys[name] for name in keys if name not in ("kind", "stages")}}
    names: dict[str, Any] = {name: {} for kind in FILE_KINDS for name in definitions[kind]["properties"]}
    definitions["experiment"] = {
        "properties": {"kind": {"enum": list(FILE_KINDS)}, "stages": STAGES},
        "allOf": [
            {"if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]}, "then": {"$ref": f"#/$defs/{kind}"}}
            for kind in FILE_KINDS
        ],
    }
    cluster = _bare(Cluster.model_json_schema())
    definitions |= cluster.pop("$defs") | {"Cluster": cluster}
    # In a section that values.yaml has, what takes no null is required: Helm drops a default for a null.
    for name in {type(section).__name__ for section in _sections(Cluster())}:
        properties = definitions[name]["properties"]
        definitions[name]["required"] = [key for key, node in properties.items() if NULL not in node.get("anyOf", ())]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "additionalProperties": False,
        "required": ["cluster", "env"],
        "properties": names | CHARTS_OWN | {"kind": {}, "stages": {}, "cluster": {"$ref": "#/$defs/Cluster"}},
        "allOf": [{"$ref": "#/$defs/experiment"}],
        "$defs": definitions,
    }


def _bare(node: Any) -> Any:
    """Return pydantic's schema without texts and defaults."""
    if isinstance(node, list):
        return [_bare(item) for item in node]
    if not isinstance(node, dict):
        return node
    out = {
        key: _bare(value) for key, value in node.items() if key not in ("title", "description", "default", "examples")
    }
    if "properties" in node:  # a key may be called `description` itself
        out["properties"] = {key: _bare(value) for key, value in node["properties"].items()}
    return out


def _nullable(node: dict[str, Any]) -> dict[str, Any]:
    """Return a section whose keys all take null, which unsets what another values file gives; nothing is required."""
    if "properties" not in node:
        return node
    keys = {}
    for name, key in node["properties"].items():
        more = [{"type": "string"}, NULL] if name in SHORT else [NULL]
        choices = key.get("anyOf", [key])
        keys[name] = {"anyOf": [*choices, *(choice for choice in more if choice not in choices)]}
    return {name: value for name, value in node.items() if name != "required"} | {"properties": keys}


def _sections(section: Section) -> Iterator[Section]:
    yield section
    for _, value in section:
        if isinstance(value, Section):
            yield from _sections(value)


def layout(node: Any, indent: str = "") -> str:
    """Return JSON text in which what fits a line is a line."""
    flat = json.dumps(node)
    if len(indent + flat) <= WIDTH or not isinstance(node, dict | list):
        return flat
    items = node.items() if isinstance(node, dict) else [("", item) for item in node]
    lines = [f"{indent} {key and json.dumps(key) + ': '}{layout(value, indent + ' ')}" for key, value in items]
    return "\n".join([flat[0], ",\n".join(lines), indent + flat[-1]])


def values_lines(section: Section, indent: str, told: set[type[Section]]) -> Iterator[str]:
    """Yield the lines of a section's keys with their descriptions; a class that is in `told` has them further up."""
    for name, field in type(section).model_fields.items():
        key, value, inner = field.alias or name, getattr(section, name), section_of(field)
        is_told = bool({cls for cls in type(section).__mro__ if name in inspect.get_annotations(cls)} & told)
        text = f"   # {field.description.removesuffix('.')}" if field.description else ""
        if isinstance(value, Section):
            is_empty = not value.model_dump(exclude_none=True)  # comments alone would be a null
            yield f"{indent}{key}:{' {}' if is_empty else ''}{text}"
            yield from values_lines(value, indent + "  ", told)
            told |= {cls for cls in type(value).__mro__ if issubclass(cls, Section)}
        elif value is not None:
            shown = json.dumps(to_jsonable_python(value, by_alias=True, exclude_none=True))
            yield f"{indent}{key}: {shown}{'' if is_told else text}"
        elif not is_told:
            keys = ", ".join(item.alias or "" for item in inner.model_fields.values()) if inner else ""
            yield f"{indent}# {key}:{f' {{{keys}}}' if keys else ''}{text}"


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m chartgen", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a file differs")
    check = parser.parse_args().check
    values = "\n".join(values_lines(Cluster(), "  ", set()))
    texts = {"values.yaml": f"{HEADER}{values}\n", "values.schema.json": layout(schema()) + "\n"}
    stale = [name for name, text in texts.items() if (FOLDER / name).read_text() != text]
    for name in stale:
        print(f"{name} differs from opd.experiment: run `make schema`" if check else f"wrote {FOLDER / name}")
        if not check:
            (FOLDER / name).write_text(texts[name])
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
