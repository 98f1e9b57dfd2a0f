"""Reader of many runs: lists and reads them in threads and keeps each in a file, in a bounded amount of memory."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from opd.errors import StoreError, StoreUnavailable
from opdctl.runs.listing import Listing
from opdctl.runs.places import RunPlace
from opdctl.runs.record import RunRecord, as_of_now, read_run, told_apart, unreadable

CACHE_VARIABLE = "OPDCTL_CACHE_DIR"
# Raised when a record or the metrics get another form.
FORMAT_VERSION = 3
# Downloads wait for the network, Arrow parses without the GIL; each run in flight holds its own bytes only.
NUM_THREADS = 6
# Errors of a reader that meets a record of an unforeseen shape, or a run that is deleted meanwhile.
_MALFORMED = (
    ArithmeticError, AttributeError, FileNotFoundError, LookupError, RecursionError, TypeError, ValueError, pa.ArrowException,
)  # fmt: skip
Item = TypeVar("Item")
Found = TypeVar("Found")


@contextmanager
def cache_folder(*, use_cache: bool = True) -> Iterator[Path]:
    """Yield the folder of the cache: the user's ($OPDCTL_CACHE_DIR), or a folder that is removed afterwards."""
    if use_cache:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        yield Path(os.environ.get(CACHE_VARIABLE) or Path(base) / "opd" / "opdctl")
        return
    with tempfile.TemporaryDirectory(prefix="opdctl-") as folder:
        yield Path(folder)


class RunCache:
    """One Arrow file a run: its merged metrics, with the record and the listing's fingerprint as metadata."""

    def __init__(self, folder: Path, url: str):
        self.path = folder / f"v{FORMAT_VERSION}" / f"{hashlib.sha256(url.encode()).hexdigest()[:32]}.arrow"
        self._unsaved: tuple[str, pa.Table] | None = None

    def record(self, fingerprint: str) -> RunRecord | None:
        """Return the record; None where none is kept for this fingerprint."""
        try:
            with pa.OSFile(str(self.path)) as file:
                return self._record(pa.ipc.open_file(file).schema.metadata, fingerprint)
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException):
            return None

    @staticmethod
    def _record(metadata: dict[bytes, bytes], fingerprint: str) -> RunRecord | None:
        is_same = metadata[b"fingerprint"].decode() == fingerprint
        return RunRecord(**json.loads(metadata[b"record"])) if is_same else None

    def metrics(self, fingerprint: str) -> pa.Table | None:
        """Return the metrics that `save` kept; None where another command has replaced them."""
        if self._unsaved is not None and self._unsaved[0] == fingerprint:
            return self._unsaved[1]
        try:
            with pa.OSFile(str(self.path)) as file:
                reader = pa.ipc.open_file(file)
                is_same = self._record(reader.schema.metadata, fingerprint) is not None
                return reader.read_all().replace_schema_metadata(None) if is_same else None
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException):
            return None

    def save(self, fingerprint: str, record: RunRecord, metrics: pa.Table) -> None:
        """Replace the kept run; without a writable folder keep it in memory."""
        metadata = {"fingerprint": fingerprint, "record": json.dumps(dataclasses.asdict(record))}
        whole = metrics.replace_schema_metadata(metadata)
        partial = self.path.with_name(f".{uuid.uuid4().hex}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            with pa.OSFile(str(partial), "wb") as file, pa.ipc.new_file(file, whole.schema, options=options) as writer:
                writer.write_table(whole)
            partial.replace(self.path)
        except OSError:
            self._unsaved = (fingerprint, metrics)
        finally:
            if partial.parent.is_dir():
                partial.unlink(missing_ok=True)


@dataclass(frozen=True, kw_only=True)
class GatheredRun:
    """One run's record; its metrics are read from the cache at each use."""

    record: RunRecord
    cache: RunCache
    fingerprint: str
    listing: Listing
    """The run directory as it was, so that later readers need not list it again."""

    def metrics(self) -> pa.Table:
        """Return `step` int64, one row a step, ascending; every metric float64 with nulls where it was not logged."""
        found = self.cache.metrics(self.fingerprint)
        return _read_whole(self.listing, run_id=self.record.run_id)[1] if found is None else found


def gather(
    places: Sequence[RunPlace],
    *,
    folder: Path,
    on_done: Callable[[], None] = lambda: None,
    unreachable: Unreachable | None = None,
) -> list[GatheredRun]:
    """Read every run that has started, in the order of `places`; folders that are no run are left out.

    Args:
        unreachable: leaves out the runs whose store does not answer.

    Raises:
        StoreError: the first failure, without `unreachable`.
    """
    read = functools.partial(_read, folder=folder)
    around = unreachable.around(read) if unreachable else read
    runs = [run for run in in_threads(around, places, num_threads=NUM_THREADS, on_done=on_done) if run is not None]
    records = told_apart([run.record for run in runs])
    return [dataclasses.replace(run, record=record) for run, record in zip(runs, records, strict=True)]


def _read(place: RunPlace, folder: Path) -> GatheredRun | None:
    listing = Listing(place.store)
    if not listing.is_run:
        return None
    cache, fingerprint = RunCache(folder, place.store.url), listing.fingerprint()
    record = cache.record(fingerprint)
    if record is None:
        record, metrics = _read_whole(listing, run_id=place.run_id)
        cache.save(fingerprint, record, metrics)
    return GatheredRun(record=as_of_now(record, listing), cache=cache, fingerprint=fingerprint, listing=listing)


def _read_whole(listing: Listing, *, run_id: str) -> tuple[RunRecord, pa.Table]:
    """Read record and metrics; the record of an unreadable run says so."""
    try:
        return read_run(listing, run_id=run_id)
    except _MALFORMED as error:
        return unreadable(listing, run_id=run_id, error=error)


def in_threads(
    call: Callable[[Item], Found],
    items: Sequence[Item],
    *,
    num_threads: int,
    on_done: Callable[[], None] = lambda: None,
) -> list[Found]:
    """Call for each item in threads; return the results in the items' order.

    Raises:
        Exception: the first failure; the other calls are not waited for.
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


class Unreachable:
    """Stores that do not answer, each waited for once, and runs that their store rejects; `causes` by the store's URL."""

    def __init__(self) -> None:
        self.causes: dict[str, StoreError] = {}
        self._left_out: set[str] = set()

    def around(self, call: Callable[[RunPlace], Found | None]) -> Callable[[RunPlace], Found | None]:
        """Return a call for threads that gives None for a run that is left out."""

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
