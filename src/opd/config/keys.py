"""The keys of an experiment file for people: the type, default and description of each, as the schema has them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from opd.config.base import MAX_INTEGER, Kind
from opd.config.cluster import Cluster, cluster_defaults
from opd.config.defaults import DEFAULTS
from opd.config.kinds import SPEC_CLASSES
from opd.config.tree import MISSING, get_path

_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


@dataclass(frozen=True, kw_only=True)
class Key:
    """One key.

    Attributes:
        path: its dotted path; `[]` stands for the place in a list of maps.
        takes: its type in a few words: `integer >= 1`, `"a" | "b"`, `list of string`.
        says: its description; ends with its default where that follows from other keys.
        default: as JSON; empty where there is none.
        needed: `required`, `required with SECTION`, or empty.
    """

    path: str
    takes: str
    says: str
    default: str
    needed: str


def spec_keys(kind: Kind) -> dict[str, Key]:
    """Return every key of a kind's experiment file by its path, but for those of `cluster`."""
    computed = {path: value for path, kinds, value in DEFAULTS if kind in kinds}
    fixed = {path: value[kind] if isinstance(value, dict) else None for path, value in computed.items()}
    schema = SPEC_CLASSES[kind].model_json_schema()
    return {key.path: key for key in _keys(schema, schema["$defs"], fixed)}


def cluster_keys() -> dict[str, Key]:
    """Return every key of `cluster` by its path."""
    schema, defaults = Cluster.model_json_schema(), {"cluster": cluster_defaults()}
    keys = {key.path: key for key in _keys(schema, schema["$defs"], {}, "cluster.")}
    values = {path: get_path(defaults, path) for path in keys}
    return {
        path: key
        if values[path] is MISSING
        else Key(**{**vars(key), "default": json.dumps(values[path]), "needed": ""})
        for path, key in keys.items()
    }


def _keys(
    node: Mapping[str, Any],
    definitions: Mapping[str, Any],
    computed: Mapping[str, Any],
    prefix: str = "",
    within: str = "",
) -> Iterator[Key]:
    """Yield the keys of a section that hold a value.

    Args:
        node: the section's schema.
        definitions: schemas by name.
        computed: paths with a default that is not on the field, and that default; None: it follows from other keys.
        prefix: path of the section and a dot.
        within: the section above that may be missing, whose keys count only where it is given.
    """
    for name, child in node["properties"].items():
        path, needed = f"{prefix}{name}", ""
        inner = _resolved(child, definitions)
        if "properties" in inner:
            may_miss = path if child.get("default", "") is None else within
            yield from _keys(inner, definitions, computed, f"{path}.", may_miss)
            continue
        default = computed.get(path, child.get("default"))
        if name in node.get("required", ()) and path not in computed:
            needed = f"required with `{within}`" if within else "required"
        shown = "" if default is None else json.dumps(default)
        yield Key(
            path=path, takes=_shape(child, definitions), says=child.get("description", ""), default=shown, needed=needed
        )
        item = _resolved(inner.get("items", {}), definitions)
        if "properties" in item:
            yield from _keys(item, definitions, computed, f"{path}[].", path)


def _resolved(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a node without `$ref` and without the choice of null."""
    choices = [choice for choice in node.get("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) == 1:
        node = choices[0]
    return definitions[node["$ref"].rpartition("/")[2]] if "$ref" in node else node


def _shape(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """Return what a node of the schema takes, in a few words."""
    node = _resolved(node, definitions)
    if "const" in node:
        return json.dumps(node["const"])
    if "enum" in node:
        return " | ".join(json.dumps(value) for value in node["enum"])
    if "anyOf" in node:
        return " | ".join(
            dict.fromkeys(_shape(choice, definitions) for choice in node["anyOf"] if choice != {"type": "null"})
        )
    if node.get("type") == "array":
        return f"list of {_shape(node['items'], definitions)}" if "items" in node else "list"
    limits = [f"{sign} {node[key]}" for key, sign in _BOUNDS.items() if abs(node.get(key, MAX_INTEGER)) < MAX_INTEGER]
    kind = {"object": "map"}.get(node.get("type", ""), node.get("type", "any"))
    return " ".join([kind, " and ".join(limits)]).strip()
