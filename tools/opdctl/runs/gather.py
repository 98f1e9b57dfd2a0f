"""Reads many runs at once: lists, reads and parses them in threads, caches them, in a bounded amount of memory."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from opdctl.runs.cache import RunCache
from opdctl.runs.listing import Listing
from opdctl.runs.record import RunRecord, live_state, read_run, told_apart, unreadable
from opdctl.runs.targets import RunPlace
from opdctl.runs.threads import Away, in_threads

# Downloads wait for the network, Arrow parses without the GIL; each run in flight holds its own bytes only.
NUM_THREADS = 6
# What reading a record of an unforeseen shape may raise, or of a run that is deleted meanwhile: it costs that run its row, and
# no other run anything.
_MALFORMED = (
    ArithmeticError, AttributeError, FileNotFoundError, LookupError, RecursionError, TypeError, ValueError, pa.ArrowException,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GatheredRun:
    """One run's record; its metrics are read from the cache when they are wanted."""

    record: RunRecord
    cache: RunCache
    fingerprint: str
    listing: Listing
    """The run directory as it was: who looks for more of it need not ask the store again."""

    @property
    def folders(self) -> frozenset[str]:
        """Names at the top of the run directory."""
        return frozenset(key.partition("/")[0] for key in self.listing.objects)

    def metrics(self) -> pa.Table:
        """`step` int64, one row a step, ascending; every metric float64 with nulls where it was not logged."""
        try:
            return self.cache.metrics(self.fingerprint)
        except FileNotFoundError:  # another command has read the run since it grew, and keeps that in its place
            return self.cache.hold(_read_whole(self.listing, run_id=self.record.run_id)[1])


def gather(
    places: Sequence[RunPlace],
    *,
    folder: Path,
    on_done: Callable[[], None] = lambda: None,
    away: Away | None = None,
) -> list[GatheredRun]:
    """Every run that has started, in the order of `places`; folders that are no run are left out.

    Args:
        away: leaves out what a store does not tell.

    Raises:
        StoreError: the first failure, without `away`; the others are not waited for.
    """
    read = functools.partial(_read, folder=folder)
    found = in_threads(away.around(read) if away else read, places, num_threads=NUM_THREADS, on_done=on_done)
    runs = [run for run in found if run is not None]
    records = told_apart([run.record for run in runs])
    return [dataclasses.replace(run, record=record) for run, record in zip(runs, records, strict=True)]


def _read(place: RunPlace, folder: Path) -> GatheredRun | None:
    listing = Listing(place.store)
    if not listing.is_run:
        return None
    cache, fingerprint = RunCache(folder, place.store.url), listing.fingerprint()
    cached = cache.load(fingerprint)
    if cached is not None:
        record = RunRecord(**cached)
    else:
        record, metrics = _read_whole(listing, run_id=place.run_id)
        cache.save(fingerprint, dataclasses.asdict(record), metrics)
    state, last_sign_s = live_state(record, listing)
    record = dataclasses.replace(record, state=state, last_sign_s=last_sign_s)
    return GatheredRun(
        record=record,
        cache=cache,
        fingerprint=fingerprint,
        listing=listing,
    )


def _read_whole(listing: Listing, *, run_id: str) -> tuple[RunRecord, pa.Table]:
    """Record and metrics; of a run that cannot be read, a record that says so."""
    try:
        return read_run(listing, run_id=run_id)
    except _MALFORMED as error:
        return unreadable(listing, run_id=run_id, error=error)
