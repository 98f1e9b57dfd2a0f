"""Seeded parts of a data set, such as its two halves: which part a row is in follows from what it asks and a seed alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from opd.experiment.kinds import canonical_json

_ASKS = ("system", "user")


def part_of(messages: Sequence[Mapping[str, Any]], *, of: int, seed: int) -> int:
    """The part, from 1 to `of`, that a prompt or a conversation belongs to.

    It follows from the texts of system and user: a prompt and every conversation that only answers it, and a problem that
    stands in several files, are in one part, whatever else the data hold and in whatever order. A conversation in which the
    user goes on asks something else, and is in a part of its own. So parts are about equally large, not exactly.

    Args:
        messages: of a prepared row, with `role` and `content`.
        of: how many parts there are.
        seed: another seed makes other parts.
    """
    asked = [[one["role"], without_nulls(one.get("content"))] for one in messages if one["role"] in _ASKS]
    digest = hashlib.sha256(f"{seed}:{canonical_json(asked)}".encode()).digest()
    return int.from_bytes(digest[:8]) % of + 1


def without_nulls(value: Any) -> Any:
    """A value without the keys that only other rows have, which Parquet fills with nulls."""
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value
