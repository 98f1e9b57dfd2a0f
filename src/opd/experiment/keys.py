"""The keys of an experiment file for people: the type, default and description of each, as the schema has them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from opd.experiment.base import MAX_INTEGER, PATTERN_WORDS, Kind
from opd.experiment.cluster import Cluster, cluster_defaults
from opd.experiment.defaults import DEFAULTS
from opd.experiment.kinds import SPEC_CLASSES
from opd.experiment.tree import MISSING, get_path

Schema = Mapping[str, Any]
DefaultOf = Callable[[str], Any]
_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


@dataclass(frozen=True, kw_only=True)
class Key:
    """One key; in its dotted path `[]` means each place in a list of maps."""

    path: str
    takes: str  # `integer >= 1`, `"a" | "b"`, `list of string`
    says: str  # ends with the default where that follows from other keys
    default: str  # as JSON; empty where there is none
    needed: str  # `required`, `required with SECTION`, or empty


def spec_keys(kind: Kind) -> dict[str, Key]:
    """Return every key of a kind's experiment file by its path, without the keys of `cluster`."""
    known = {path: value[kind] if isinstance(value, dict) else None for path, kinds, value in DEFAULTS if kind in kinds}
    schema = SPEC_CLASSES[kind].model_json_schema()
    return {key.path: key for key in _keys(schema, schema["$defs"], lambda path: known.get(path, MISSING))}


def cluster_keys() -> dict[str, Key]:
    """Return every key of `cluster` by its path."""
    schema, defaults = Cluster.model_json_schema(), {"cluster": cluster_defaults()}
    return {key.path: key for key in _keys(schema, schema["$defs"], lambda path: get_path(defaults, path), "cluster.")}


def _keys(node: Schema, schemas: Schema, default_of: DefaultOf, prefix: str = "", within: str = "") -> Iterator[Key]:
    """Yield the keys of a section, given the default of a path; None means that other keys decide it.

    The keys of `within`, a section that may be missing, count only where it is given.
    """
    for name, child in node["properties"].items():
        path, inner = f"{prefix}{name}", _resolved(child, schemas)
        if "properties" in inner:
            above = path if child.get("default", "") is None else within
            yield from _keys(inner, schemas, default_of, f"{path}.", above)
            continue
        default, needed = default_of(path), ""
        if default is MISSING and name in node.get("required", ()):
            needed = f"required with `{within}`" if within else "required"
        default = child.get("default") if default is MISSING else default
        shown = "" if default is None else json.dumps(default)
        says = child.get("description", "")
        yield Key(path=path, takes=_shape(child, schemas), says=says, default=shown, needed=needed)
        item = _resolved(inner.get("items", {}), schemas)
        if "properties" in item:
            yield from _keys(item, schemas, default_of, f"{path}[].", path)


def _resolved(node: Schema, schemas: Schema) -> Schema:
    """Return a node without `$ref` and without the choice of null."""
    choices = [choice for choice in node.get("anyOf", ()) if choice != {"type": "null"}]
    node = choices[0] if len(choices) == 1 else node
    return schemas[node["$ref"].rpartition("/")[2]] if "$ref" in node else node


def _shape(node: Schema, schemas: Schema) -> str:
    """Return what a node of the schema takes, in a few words."""
    node = _resolved(node, schemas)
    if "const" in node or "enum" in node:
        return " | ".join(map(json.dumps, node.get("enum") or [node["const"]]))
    if "anyOf" in node:
        choices = [choice for choice in node["anyOf"] if choice != {"type": "null"}]
        return " | ".join(dict.fromkeys(_shape(choice, schemas) for choice in choices))
    if node.get("type") == "array":
        return f"list of {_shape(node['items'], schemas)}" if "items" in node else "list"
    limits = [f"{sign} {node[key]}" for key, sign in _BOUNDS.items() if abs(node.get(key, MAX_INTEGER)) < MAX_INTEGER]
    kind = str(node.get("type", "any")).replace("object", "map")
    return " ".join([PATTERN_WORDS.get(node.get("pattern", ""), kind), " and ".join(limits)]).strip()
