"""Copies of what a simulated rank saves, as `opd.compat.host_copies` makes them of what torch saves."""

import contextlib
from collections.abc import Callable, Iterator


class HostCopies:
    """The files that are left to write, while it is asked for them."""

    def __init__(self) -> None:
        self.writes: list[Callable[[], None]] | None = None

    @contextlib.contextmanager
    def taken(self) -> Iterator[list[Callable[[], None]]]:
        self.writes = writes = []
        try:
            yield writes
        finally:
            self.writes = None
