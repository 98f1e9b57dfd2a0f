"""What each attempt of a run told of itself (`opd.runs.origin`), and what its first step showed of the teacher."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opd.errors import CorruptRecord
from opd.monitor.preflight import Line
from opd.runs.origin import file_key
from opdctl.runs.listing import Listing


def origins(listing: Listing) -> dict[int, Mapping[str, Any]]:
    """By the attempt's number; those of older versions told nothing.

    Raises:
        StoreError: the store is away.
    """
    told = {attempt: _record(listing, file_key(attempt)) for attempt in listing.attempts()}
    return {attempt: found for attempt, found in told.items() if found}


def preflight(told: Mapping[int, Mapping[str, Any]]) -> list[Line]:
    """Of the newest attempt that made the first step; empty where none told it."""
    found = (Line.read(told[attempt].get("preflight")) for attempt in sorted(told, reverse=True))
    return next(filter(None, found), [])


def _record(listing: Listing, key: str) -> Mapping[str, Any]:
    """A record of a run, empty where there is none or it cannot be read."""
    try:
        found = listing.store.get_json(key) if key in listing else None
    except CorruptRecord:
        found = None
    return found if isinstance(found, dict) else {}
