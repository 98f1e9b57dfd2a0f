"""Generates from the schema each kind's JSON Schema and default values."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, create_model
from pydantic_core import PydanticUndefined, to_jsonable_python

from opd.config.base import Kind, Section
from opd.config.defaults import DEFAULTS, Default
from opd.config.kinds import SPEC_CLASSES
from opd.config.parse import CHART_KEYS
from opd.config.tree import in_optional_section, leaf_paths, set_path


def json_schema(kind: Kind, *, only: str | None = None) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a kind's experiment file, without `$ref`, with the charts' keys left open.

    The schema rejects unknown keys at every level; a key with a default, computed or not, is not required; null is no value.

    Args:
        only: one key or section at the top, in a fraction of the time that the whole takes.
    """
    cls: type[BaseModel] = SPEC_CLASSES[kind]
    if only is not None:
        field = cls.model_fields[only]
        fields: dict[str, Any] = {only: (field.annotation, field)}
        cls = create_model(cls.__name__, __base__=Section, **fields)
    flat = inlined_schema(cls)
    several = flat["properties"].get("teachers", {}).get("patternProperties", {})
    for default in DEFAULTS:
        section = default.path.partition(".")[0]
        if kind in default.kinds and section in flat["properties"]:
            _mark_default(flat, default, kind)
        for item in several.values() if section == "teacher" else ():
            _mark_default({"properties": {"teacher": item}}, default, kind)
    if several and only is None:
        flat |= {"if": {"properties": {"teachers": {"maxProperties": 0}}}, "then": {"required": ["teacher"]}}
    _relax_sections(flat)
    for node in (flat["properties"].get("model"), flat["properties"].get("teacher"), *several.values()):
        if node is not None:
            node["type"] = ["object", "string"]  # `model: PATH` is `model: {path: PATH}`
    for key in CHART_KEYS if only is None else ():
        flat["properties"][key] = {"type": "object", "description": "The charts' part; the trainer does not read it."}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **flat}


def inlined_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schema of a model, without `$ref`, titles and null."""
    schema = model.model_json_schema()
    flat: dict[str, Any] = _inline(schema, schema.pop("$defs", {}))
    _tighten(flat)
    return flat


def static_defaults(kind: Kind) -> dict[str, Any]:
    """Return every default that depends on the kind alone, as a tree; defaults that follow from other keys are left out.

    A chart's values.yaml may hold these and no more. Helm lays a user's values over them: a computed default there (`opd.max_length`) would count as set by the user.
    """
    computed = {default.path: default for default in DEFAULTS if kind in default.kinds}
    cls = SPEC_CLASSES[kind]
    tree: dict[str, Any] = {"kind": kind}
    for path, field in leaf_paths(cls):
        default = computed.get(path)
        if default is not None:
            value = default.by_kind[kind] if default.by_kind else None
        else:
            value = field.get_default(call_default_factory=True)
        if value is not None and value is not PydanticUndefined and not in_optional_section(cls, path):
            set_path(tree, path, to_jsonable_python(value))
    return tree


def _inline(node: Any, definitions: dict[str, Any]) -> Any:
    """Return the schema with every reference replaced by a copy of its definition, and pydantic's titles removed."""
    if isinstance(node, list):
        return [_inline(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        target = copy.deepcopy(definitions[node["$ref"].rpartition("/")[2]])
        node = {**target, **{key: value for key, value in node.items() if key != "$ref"}}
    out = {key: _inline(value, definitions) for key, value in node.items() if key != "title"}
    if "properties" in node:  # a field may itself be called `title`
        out["properties"] = {key: _inline(value, definitions) for key, value in node["properties"].items()}
    return out


def _tighten(node: Any) -> None:
    """Make X of `anyOf: [X, null]`, since an optional key is left out, never null; maps refuse keys off their pattern."""
    if isinstance(node, list):
        for item in node:
            _tighten(item)
    if not isinstance(node, dict):
        return
    choices = node.get("anyOf")
    if choices is not None and {"type": "null"} in choices:
        kept = [choice for choice in choices if choice != {"type": "null"}]
        del node["anyOf"]
        node.update({**kept[0], **node} if len(kept) == 1 else {"anyOf": kept})
        if node.get("default", "") is None:
            del node["default"]
    if "patternProperties" in node:  # pydantic refuses other keys; say so in the schema too
        node["additionalProperties"] = False
    for value in node.values():
        _tighten(value)


def _property(schema: dict[str, Any], path: str) -> dict[str, Any]:
    for key in path.split("."):
        schema = schema["properties"][key]
    return schema


def _mark_default(schema: dict[str, Any], default: Default, kind: Kind) -> None:
    parent, _, key = default.path.rpartition(".")
    section = _property(schema, parent) if parent else schema
    section["required"] = [name for name in section.get("required", ()) if name != key]
    node = section["properties"][key]
    if default.by_kind:
        node["default"] = default.by_kind[kind]
    else:
        node["description"] = f"{node.get('description', '')} Default: {default.says}."


def _sections(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, node in schema.get("properties", {}).items():
        if "properties" in node:
            yield name, node


def _relax_sections(schema: dict[str, Any]) -> None:
    """Make a section required only if something inside it is."""
    for name, node in _sections(schema):
        _relax_sections(node)
        if not node.get("required"):
            node.pop("required", None)
            schema["required"] = [key for key in schema.get("required", ()) if key != name]
