"""Every key of a kind with its type, default and description, as a test asks for them."""

from dataclasses import dataclass
from typing import Any

from opd.config import SPEC_CLASSES, json_schema
from opd.config.base import Kind
from opd.config.defaults import DEFAULTS
from opd.config.tree import in_optional_section, leaf_paths


@dataclass(frozen=True)
class FieldDoc:
    """One key of a kind.

    Attributes:
        path: dotted path.
        type: the key's JSON Schema.
        default: the static default, or None.
        required: every spec of the kind must give the key (not: only where an optional section is given).
        description: one sentence.
    """

    path: str
    type: dict[str, Any]
    default: Any
    required: bool
    description: str


def field_docs(kind: Kind) -> list[FieldDoc]:
    """Every key of a kind in the order of the schema."""
    schema = json_schema(kind)
    computed = {default.path for default in DEFAULTS if kind in default.kinds}
    cls = SPEC_CLASSES[kind]
    out = []
    for path, field in leaf_paths(cls):
        node = dict(_property(schema, path.split(".")))
        description = node.pop("description", "")
        default = node.pop("default", None)
        required = field.is_required() and path not in computed and not in_optional_section(cls, path)
        out.append(FieldDoc(path, node, default, required, description))
    return out


def _property(schema: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    for key in keys:
        schema = schema["properties"][key]
    return schema
