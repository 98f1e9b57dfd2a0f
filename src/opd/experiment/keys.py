"""The keys of an experiment file for people: the type, default and description of each, as the schema has them."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from opd.experiment.base import MAX_INTEGER, PATTERN_WORDS, Section

Schema = Mapping[str, Any]
_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


class Key(NamedTuple):
    facts: str  # `integer >= 1; default 42`, `"a" | "b"; required`
    says: str  # ends with the default where that follows from other keys


def keys_of(cls: type[Section], prefix: str = "") -> dict[str, Key]:
    """Return every key of a section by its dotted path, in which `[]` means each place in a list of maps."""
    schema = cls.model_json_schema()
    return dict(_keys(schema, schema["$defs"], prefix))


def _keys(node: Schema, schemas: Schema, prefix: str) -> Iterator[tuple[str, Key]]:
    for name, child in node["properties"].items():
        path, inner = f"{prefix}{name}", _resolved(child, schemas)
        if "properties" in inner:
            yield from _keys(inner, schemas, f"{path}.")
            continue
        says, facts = child["description"], [_shape(child, schemas)]
        if child.get("default") is not None:
            facts.append(f"default {json.dumps(child['default'])}")
        elif name in node.get("required", ()) and "Default: " not in says:
            facts.append("required")
        yield path, Key("; ".join(facts), says)
        item = _resolved(inner.get("items", {}), schemas)
        if "properties" in item:
            yield from _keys(item, schemas, f"{path}[].")


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
        return " | ".join(_shape(choice, schemas) for choice in node["anyOf"] if choice != {"type": "null"})
    if node.get("type") == "array":
        return f"list of {_shape(node['items'], schemas)}" if "items" in node else "list"
    limits = [f"{sign} {node[key]}" for key, sign in _BOUNDS.items() if abs(node.get(key, MAX_INTEGER)) < MAX_INTEGER]
    kind = str(node.get("type", "any")).replace("object", "map")
    return " ".join([PATTERN_WORDS.get(node.get("pattern", ""), kind), " and ".join(limits)]).strip()
