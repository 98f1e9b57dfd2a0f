"""Builds the tree that a chart is generated from: its values' JSON Schema and defaults, `cluster` included."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from typing import Any

from opd.config import FILE_KINDS, KINDS, Kind, json_schema, static_defaults
from opd.config.base import MAX_INTEGER
from opd.config.cluster import cluster_defaults, cluster_schema
from opd.config.pipeline import PIPELINES_OWN, SKIP

LIBRARY = "opd-lib"


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One chart.

    Attributes:
        kind: kind of experiment; also the chart's name.
        schema: JSON Schema of the values; every key that has a default is required, so that a null, by which Helm drops
            a default, is an error that names the key.
        defaults: the content of values.yaml.
    """

    kind: Kind
    schema: dict[str, Any]
    defaults: dict[str, Any]


@functools.cache
def charts() -> tuple[Chart, ...]:
    """Return every chart, one a kind."""
    return tuple(_chart(kind) for kind in FILE_KINDS)


def _chart(kind: Kind) -> Chart:
    schema = copy.deepcopy(json_schema(kind))
    properties = schema["properties"]
    if kind == "pipeline":
        _describe_stages(properties["stages"])
    properties["cluster"] = {**cluster_schema(kind), "description": "How the run meets the cluster."}
    properties["global"] = {"type": "object", "description": "Helm's own; not used."}
    # Helm writes this key into the values of every chart that depends on the library.
    properties[LIBRARY] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {"global": {"type": "object"}},
    }
    properties["matrix"] = {"description": "A sweep; refused by a rule of the chart, which says what to do instead."}
    defaults = {**static_defaults(kind), "cluster": cluster_defaults(kind)}
    del defaults["kind"]  # a file without it would work for Helm alone
    _require_defaults(schema, defaults)
    _bound_integers(schema)
    return Chart(kind=kind, schema=schema, defaults=defaults)


def stage_defaults() -> dict[Kind, dict[str, Any]]:
    """What a chart's values.yaml holds of each kind, for the stages of a pipeline; without what is the whole pipeline's."""
    return {
        kind: {key: value for key, value in static_defaults(kind).items() if key not in (*PIPELINES_OWN, "seed")}
        for kind in KINDS
    }


def _describe_stages(stages: dict[str, Any]) -> None:
    """A stage has the keys of its kind."""
    [pattern] = stages["patternProperties"]
    stages["patternProperties"] = {
        pattern: {
            "type": "object",
            "properties": {"kind": {"enum": list(KINDS)}},
            "required": ["kind"],
            "allOf": [
                {"if": {"properties": {"kind": {"const": kind}}}, "then": _stage_schema(json_schema(kind))}
                for kind in KINDS
            ],
        }
    }


def _stage_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """An experiment's schema without what a pipeline has for all stages, and without what it says to people elsewhere."""
    properties = {key: node for key, node in schema["properties"].items() if key not in PIPELINES_OWN}
    required = [key for key in schema.get("required", ()) if key in properties]
    kept = {key: value for key, value in schema.items() if key in ("type", "additionalProperties", "if", "then")}
    stated = {key: _unsaid(node) for key, node in properties.items()}
    return {**kept, "required": required, "properties": {**stated, SKIP: {"type": "boolean"}}}


def _unsaid(node: Any) -> Any:
    if isinstance(node, list):
        return [_unsaid(item) for item in node]
    if not isinstance(node, dict):
        return node
    out = {key: _unsaid(value) for key, value in node.items() if key not in ("description", "default", "examples")}
    if "properties" in node:  # a key may be called so itself
        out["properties"] = {key: _unsaid(value) for key, value in node["properties"].items()}
    return out


def values_schema(chart: Chart) -> dict[str, Any]:
    """The schema as Helm gets it: what has no default is required of values that name their kind, so of every experiment.

    The chart's own values.yaml names none: `helm lint` of the chart alone passes and says what to give.
    """
    schema = copy.deepcopy(chart.schema)
    own = {key: schema.pop(key) for key in ("if", "then") if key in schema}
    needed = _take_required(schema, chart.defaults)
    schema |= {"if": {"required": ["kind"]}, "then": {"allOf": [needed, own]} if own else needed}
    return schema


def _take_required(schema: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Moves the requirement of keys without a default, in sections that are always there, into a schema of their own."""
    missing = [name for name in schema["required"] if name not in defaults]
    schema["required"] = [name for name in schema["required"] if name in defaults]
    inner = {
        name: _take_required(schema["properties"][name], value)
        for name, value in defaults.items()
        if isinstance(value, dict) and "required" in schema["properties"].get(name, {})
    }
    inner = {name: taken for name, taken in inner.items() if taken}
    return {**({"required": missing} if missing else {}), **({"properties": inner} if inner else {})}


def _bound_integers(node: Any) -> None:
    """Helm and JSON carry integers exactly up to 2^53 only."""
    if isinstance(node, dict):
        if node.get("type") == "integer":
            node.setdefault("minimum", -MAX_INTEGER)
            node.setdefault("maximum", MAX_INTEGER)
        for value in node.values():
            _bound_integers(value)
    elif isinstance(node, list):
        for item in node:
            _bound_integers(item)


def _require_defaults(schema: dict[str, Any], defaults: dict[str, Any]) -> None:
    names = schema.get("properties", {})
    required = set(schema.get("required", ())) | (set(defaults) & set(names))
    if required:
        schema["required"] = [name for name in names if name in required]
    for name, value in defaults.items():
        if isinstance(value, dict) and name in names:
            _require_defaults(names[name], value)
