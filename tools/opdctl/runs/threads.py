"""Work on many runs at once, each in a thread, since most of the time is spent waiting for a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, TypeVar

from opd.errors import StoreError, StoreUnavailable

if TYPE_CHECKING:
    from opdctl.runs.targets import RunPlace

Item = TypeVar("Item")
Found = TypeVar("Found")


def in_threads(
    call: Callable[[Item], Found],
    items: Sequence[Item],
    *,
    num_threads: int,
    on_done: Callable[[], None] = lambda: None,
) -> list[Found]:
    """What `call` gives for each item, in their order; `on_done` is called here after each.

    Raises:
        Exception: the first failure; the others are not waited for.
    """
    pool = ThreadPoolExecutor(min(num_threads, max(len(items), 1)), thread_name_prefix="opdctl-gather")
    try:
        futures = [pool.submit(call, item) for item in items]
        for future in as_completed(futures):
            future.result()
            on_done()
        return [future.result() for future in futures]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


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
