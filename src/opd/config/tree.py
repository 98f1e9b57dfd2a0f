"""Reads and writes dotted paths in a plain tree, and finds the field that a path names in a kind's schema."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from opd.config.base import Section

MISSING = object()


def get_path(tree: Any, path: str) -> Any:
    """Return the value at a dotted path, or `MISSING`."""
    for key in path.split("."):
        if not isinstance(tree, dict) or key not in tree:
            return MISSING
        tree = tree[key]
    return tree


def set_path(tree: dict[str, Any], path: str, value: Any) -> bool:
    """Set a dotted path, making the maps on the way; False where something else than a map is in the way."""
    *parents, last = path.split(".")
    for key in parents:
        child = tree.setdefault(key, {})
        if not isinstance(child, dict):
            return False
        tree = child
    tree[last] = value
    return True


def value_at(section: Any, path: str) -> Any:
    """Return a validated section's value at a dotted path as plain data; None for a key that it does not have."""
    for key in path.split("."):
        if isinstance(section, tuple | list):
            section = section[int(key)]
        else:
            section = section.get(key) if isinstance(section, dict) else getattr(section, key, None)
    return to_jsonable_python(section)


def sections(section: Section, path: str = "") -> Iterator[tuple[str, Section]]:
    """Yield a section and every section in it, each with its path in a file."""
    yield path, section
    for name, field in type(section).model_fields.items():
        value, here = getattr(section, name), f"{path}.{field.alias or name}".lstrip(".")
        items = [(here, value)]
        if isinstance(value, dict | tuple):
            pairs = value.items() if isinstance(value, dict) else enumerate(value)
            items = [(f"{here}.{key}", item) for key, item in pairs]
        for where, item in items:
            if isinstance(item, Section):
                yield from sections(item, where)


def drop_path(tree: dict[str, Any], path: str) -> None:
    """Remove a dotted path if it is there."""
    key, _, rest = path.partition(".")
    if not rest:
        tree.pop(key, None)
    elif isinstance(child := tree.get(key), dict):
        drop_path(child, rest)


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge maps key by key, and replace everything else."""
    out = dict(below)
    for key, value in above.items():
        old = out.get(key)
        out[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return out


def strip_optional(annotation: Any) -> Any:
    """Return the type within Annotated and `| None`."""
    while True:
        origin = get_origin(annotation)
        if origin is Annotated:
            annotation = get_args(annotation)[0]
        elif origin in (Union, types.UnionType):
            kept = [arg for arg in get_args(annotation) if arg is not type(None)]
            if len(kept) != 1:
                return annotation
            annotation = kept[0]
        else:
            return annotation


def section_of(field: FieldInfo) -> type[Section] | None:
    """Return the section class that a field holds, or None for a plain value."""
    annotation = strip_optional(field.annotation)
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


def item_section(field: FieldInfo, key: str) -> type[Section] | None:
    """Return the section class of a list's item or of what a map has by a key, or None for anything else."""
    annotation = strip_optional(field.annotation)
    origin, item = get_origin(annotation), None
    if origin is dict or (origin is tuple and key.isdigit()):
        item = get_args(annotation)[1 if origin is dict else 0]
    return item if isinstance(item, type) and issubclass(item, Section) else None


def field_at(cls: type[Section], path: str) -> FieldInfo | None:
    """Return the field that a dotted path names (`opd.stages.0.until`, `teachers.NAME.path`), or None. Below a free-form map it is the map's."""
    field: FieldInfo | None = None
    section: type[Section] | None = cls
    for key in path.split("."):
        if section is None and field is not None and (item := item_section(field, key)) is not None:
            field, section = FieldInfo(annotation=item), item
            continue
        if section is None:
            is_map = field is not None and get_origin(strip_optional(field.annotation)) is dict
            return field if is_map else None
        field = section.model_fields.get(key) or names_of(section).get(key)
        if field is None:
            return None
        section = section_of(field)
    return field


def names_of(section: type[Section]) -> dict[str, FieldInfo]:
    """Return the section's fields, as a file spells them."""
    return {field.alias or name: field for name, field in section.model_fields.items()}


def leaf_paths(cls: type[Section], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield every (dotted path, field) of a kind that holds a value rather than a section."""
    for name, field in cls.model_fields.items():
        path = f"{prefix}{name}"
        section = section_of(field)
        if section is None:
            yield path, field
        else:
            yield from leaf_paths(section, f"{path}.")


def in_optional_section(cls: type[Section], path: str) -> bool:
    """Return True where a section on the way to the path may be left out altogether."""
    parts = path.split(".")
    fields = [field_at(cls, ".".join(parts[:depth])) for depth in range(1, len(parts))]
    return any(field is not None and field.default is None for field in fields)
