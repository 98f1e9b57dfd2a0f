"""Reads many runs at once: lists, reads and parses them in threads, caches them, in a bounded amount of memory."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from opdctl.runs.cache import RunCache, default_folder
from opdctl.runs.listing import Listing
from opdctl.runs.records import RunRecord, live_state, read_run, unreadable
from opdctl.runs.targets import RunPlace

# Downloads wait for the network, Arrow parses without the GIL; each run in flight holds its own bytes only.
NUM_THREADS = 6
# What reading a record of an unforeseen shape may raise: it costs that run its row, and no other run anything.
_MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError, pa.ArrowException)


@dataclass(frozen=True, kw_only=True)
class GatheredRun:
    """One run's record; its metrics are read from the cache when they are wanted."""

    record: RunRecord
    cache: RunCache
    fingerprint: str
    was_cached: bool
    folders: frozenset[str] = frozenset()
    """Names at the top of the run directory: who looks for results there need not ask the store again."""

    def metrics(self) -> pa.Table:
        """`step` int64, one row a step, ascending; every metric float64 with nulls where it was not logged."""
        return self.cache.metrics(self.fingerprint)


@contextmanager
def cache_folder(*, use_cache: bool) -> Iterator[Path]:
    """The folder that runs are cached in: the user's, or one that is gone afterwards."""
    if use_cache:
        yield default_folder()
        return
    with tempfile.TemporaryDirectory(prefix="opdctl-") as folder:
        yield Path(folder)


def gather(
    places: Sequence[RunPlace], *, folder: Path, on_done: Callable[[], None] = lambda: None
) -> list[GatheredRun]:
    """Every run that has started, in the order of `places`; folders that are no run are left out.

    Raises:
        StoreError: the first failure; the others are not waited for.
    """
    pool = ThreadPoolExecutor(min(NUM_THREADS, max(len(places), 1)), thread_name_prefix="opdctl-gather")
    try:
        futures = [pool.submit(_read, place, folder) for place in places]
        waiting = set(futures)
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                future.result()
                on_done()
        return _told_apart([run for future in futures if (run := future.result()) is not None])
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _told_apart(runs: list[GatheredRun]) -> list[GatheredRun]:
    """Runs of one name from several stores are called by their URL."""
    names = [run.record.run_id for run in runs]
    return [
        dataclasses.replace(run, record=dataclasses.replace(run.record, run_id=run.record.url))
        if names.count(run.record.run_id) > 1
        else run
        for run in runs
    ]


def _read(place: RunPlace, folder: Path) -> GatheredRun | None:
    listing = Listing(place.store)
    if not listing.is_run:
        return None
    cache, fingerprint = RunCache(folder, place.store.url), listing.fingerprint()
    cached = cache.load(fingerprint)
    if cached is not None:
        record = RunRecord(**cached)
    else:
        try:
            record, metrics = read_run(listing, run_id=place.run_id)
        except _MALFORMED as error:
            record, metrics = unreadable(listing, run_id=place.run_id, error=error)
        cache.save(fingerprint, record.to_json(), metrics)
    state, last_sign_s = live_state(record, listing)
    record = dataclasses.replace(record, state=state, last_sign_s=last_sign_s)
    return GatheredRun(
        record=record,
        cache=cache,
        fingerprint=fingerprint,
        was_cached=cached is not None,
        folders=frozenset(key.partition("/")[0] for key in listing.objects),
    )
