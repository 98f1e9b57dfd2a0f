"""Lists the keys of an experiment file: what each one takes, its default and what it is for, as the schema has it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from opd.config.base import MAX_INTEGER, Kind
from opd.config.cluster import cluster_defaults, cluster_schema
from opd.config.schema import json_schema, static_defaults


@dataclass(frozen=True, kw_only=True)
class Key:
    """One key.

    Attributes:
        path: its dotted path; `[]` stands for the place in a list of maps.
        node: its JSON Schema.
        default: as JSON; empty where there is none.
        needed: `required`, `required with SECTION`, or empty.
    """

    path: str
    node: dict[str, Any]
    default: str
    needed: str

    @property
    def takes(self) -> str:
        """What it takes, in a few words: `integer >= 1`, `"a" | "b"`, `list of string`."""
        return shape(self.node)

    @property
    def says(self) -> str:
        """What it is for; ends with its default where that follows from other keys."""
        return str(self.node.get("description", ""))


def spec_keys(kind: Kind, *, only: str | None = None) -> dict[str, Key]:
    """Every key of a kind's experiment file by its path, but for those of `cluster`.

    Args:
        only: one section, or one key outside of any.
    """
    schema = json_schema(kind, only=only)
    schema["properties"].pop("cluster", None)
    return {key.path: key for key in keys(schema, static_defaults(kind))}


def cluster_keys() -> dict[str, Key]:
    """Every key of `cluster` by its path, as kinds with workers have them."""
    return {key.path: key for key in keys(cluster_schema("opd"), cluster_defaults("opd"), "cluster.")}


def keys(schema: dict[str, Any], defaults: Any, prefix: str = "", absent: str = "") -> Iterator[Key]:
    """The keys of a section that hold a value.

    Args:
        prefix: path of the section and a dot.
        absent: the section above that may be missing, whose keys count only where it is given.
    """
    required = set(schema.get("required", ()))
    for name, node in schema["properties"].items():
        path = f"{prefix}{name}"
        has_default = isinstance(defaults, dict) and name in defaults
        if "properties" in node:
            may_miss = absent or ("" if has_default or name in required else path)
            yield from keys(node, defaults[name] if has_default else {}, f"{path}.", may_miss)
            continue
        default = needed = ""
        if has_default or (absent and "default" in node):
            default = json.dumps(defaults[name] if has_default else node["default"])
        elif name in required:
            needed = f"required with `{absent}`" if absent else "required"
        yield Key(path=path, node=node, default=default, needed=needed)
        if "properties" in (item := node.get("items", {})):
            yield from keys(item, {}, f"{path}[].", path)


def shape(node: dict[str, Any]) -> str:
    """What a node of the schema takes, in a few words."""
    if "const" in node:
        return json.dumps(node["const"])
    if "enum" in node:
        return " | ".join(json.dumps(value) for value in node["enum"])
    if "anyOf" in node:
        return " | ".join(dict.fromkeys(shape(choice) for choice in node["anyOf"]))
    if isinstance(node.get("type"), list):
        return "map | string"
    if node.get("type") == "array":
        return f"list of {shape(node['items'])}" if "items" in node else "list"
    bounds = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    limits = [f"{sign} {node[key]}" for key, sign in bounds.items() if abs(node.get(key, MAX_INTEGER)) < MAX_INTEGER]
    return " ".join(
        [{"object": "map"}.get(node.get("type", ""), node.get("type", "any")), " and ".join(limits)]
    ).strip()
