"""Stores that do not answer, for a command that shows what it can get of the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from opd.errors import StoreError, StoreUnavailable
from opdctl.runs.targets import RunPlace

Found = TypeVar("Found")


class Away:
    """Leaves out the runs whose store does not answer, which is waited for once, and those that it refuses.

    `causes` has the first error of each store, by the URL that its runs lie below.
    """

    def __init__(self) -> None:
        self.causes: dict[str, StoreError] = {}
        self._left_out: set[str] = set()

    def around(self, call: Callable[[RunPlace], Found | None]) -> Callable[[RunPlace], Found | None]:
        """`call`, for threads, with None for a run that is left out."""

        def ask(place: RunPlace) -> Found | None:
            url = place.store.url
            root = url.rpartition("/")[0]
            if not self._left_out.isdisjoint((root, url)):
                return None
            try:
                return call(place)
            except StoreError as error:
                self.causes.setdefault(root, error)
                self._left_out.add(root if isinstance(error, StoreUnavailable) else url)
                return None

        return ask
