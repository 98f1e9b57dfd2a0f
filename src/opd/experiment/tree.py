"""Dotted paths in a plain tree, and the fields that they name in a kind's schema."""

import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from opd.experiment.base import Section

MISSING = object()


def get_path(tree: Any, path: str) -> Any:
    """Return the value at a dotted path of a plain tree, or `MISSING`."""
    for name in path.split("."):
        if not isinstance(tree, dict) or name not in tree:
            return MISSING
        tree = tree[name]
    return tree


def set_path(tree: dict[str, Any], path: str, value: Any) -> bool:
    """Set a dotted path, making the maps on the way; False where something else than a map is in the way."""
    *parents, last = path.split(".")
    for name in parents:
        if tree.get(name) is None:
            tree[name] = {}
        if not isinstance(tree := tree[name], dict):
            return False
    tree[last] = value
    return True


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge maps key by key, and replace everything else."""
    out = dict(below)
    for name, value in above.items():
        old = out.get(name)
        out[name] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return out


def strip_optional(annotation: Any) -> Any:
    """Return the type within Annotated and `| None`."""
    while True:
        kept = [arg for arg in get_args(annotation) if arg is not type(None)]
        is_union = get_origin(annotation) in (Union, types.UnionType)
        if get_origin(annotation) is not Annotated and not (is_union and len(kept) == 1):
            return annotation
        annotation = kept[0]


def section_of(field: FieldInfo | None) -> type[Section] | None:
    """Return the section class that a field holds, or None for a plain value."""
    annotation = None if field is None else strip_optional(field.annotation)
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


def field_at(cls: type[Section], path: str) -> FieldInfo | None:
    """Return the field that a dotted path names (`opd.stages.0.until`), or None; in a free-form map the map's."""
    field, section = FieldInfo(annotation=cls), section_of(FieldInfo(annotation=cls))
    for name in path.split("."):
        inner = strip_optional(field.annotation)
        items = {dict: get_args(inner)[1:], tuple: get_args(inner)}.get(get_origin(inner), ())
        if section is not None:
            found = section.model_fields.get(name) or names_of(section).get(name)
        elif section_of(FieldInfo(annotation=items[0] if items else None)):
            found = FieldInfo(annotation=items[0])
        else:
            found = field if get_origin(inner) is dict else None
        if found is None:
            return None
        field, section = found, section_of(found)
    return field


def names_of(section: type[Section]) -> dict[str, FieldInfo]:
    """Return the section's fields, as a file spells them."""
    return {field.alias or name: field for name, field in section.model_fields.items()}


def leaf_paths(cls: type[Section], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield every (dotted path, field) of a kind that holds a value rather than a section."""
    for name, field in cls.model_fields.items():
        section = section_of(field)
        yield from leaf_paths(section, f"{prefix}{name}.") if section else [(f"{prefix}{name}", field)]
