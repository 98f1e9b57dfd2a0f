"""Columns of several data files made alike: what is a number in one and a text in another becomes a text in all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from datasets import Dataset, Features, List, Value


def aligned(tables: Sequence[Dataset]) -> list[Dataset]:
    """The tables with types that `datasets.concatenate_datasets` takes; one that has them already stays as it is.

    Such as `extra_info.index`, which is a row's number in most prepared files and a UUID in DAPO's, or a ground truth
    that is 7 here and "7" there (scorers read its text). Columns that a table lacks are left to the concatenation.
    """
    common = _common([dict(table.features) for table in tables])
    wanted = [Features(_part_of(common, dict(table.features))) for table in tables]
    return [
        table if table.features == features else table.cast(features)
        for table, features in zip(tables, wanted, strict=True)
    ]


def _common(kinds: Sequence[Any]) -> Any:
    """A type that holds all of `kinds`: structs and lists by their parts, differing values as text; None if there is none."""
    if all(isinstance(kind, dict) for kind in kinds):
        names = dict.fromkeys(name for kind in kinds for name in kind)
        return {name: _common([kind[name] for kind in kinds if name in kind]) for name in names}
    if all(isinstance(kind, List) for kind in kinds):
        return List(_common([kind.feature for kind in kinds]))
    values = [kind for kind in kinds if isinstance(kind, Value)]
    if len(values) != len(kinds):
        return None
    dtypes = {value.dtype for value in values} - {"null"}
    return Value("string") if len(dtypes) > 1 else Value(dtypes.pop() if dtypes else "null")


def _part_of(common: Any, own: Any) -> Any:
    """`common` with the parts, in the order, of one table's own type; its own where there is nothing common."""
    if isinstance(own, dict) and isinstance(common, dict):
        return {name: _part_of(common[name], kind) for name, kind in own.items()}
    if isinstance(own, List) and isinstance(common, List):
        return List(_part_of(common.feature, own.feature))
    return own if common is None else common
