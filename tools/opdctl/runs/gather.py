"""Reader of many runs: lists and reads them in threads and keeps each in a file, in a bounded amount of memory."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from opd.runs.identity import RUN_FILE
from opdctl.console import note, progress
from opdctl.runs.find import LONG_PATIENCE_S, Finder, RunPlace
from opdctl.runs.listing import Listing
from opdctl.runs.metrics import series
from opdctl.runs.record import RunRecord, as_of_now, read_run, told_apart

CACHE_VARIABLE = "OPDCTL_CACHE_DIR"
# Raised when a record or the metrics get another form.
FORMAT_VERSION = 5
# Downloads wait for the network, Arrow parses without the GIL; each run in flight holds its own bytes only.
NUM_THREADS = 6
Item = TypeVar("Item")
Result = TypeVar("Result")
GENERATIONS_KEY = "eval/generations.parquet"
EVALUATIONS_SCHEMA = pa.schema(
    [("step", pa.int64()), ("data_source", pa.string()), ("quantity", pa.string()), ("statistic", pa.string()),
     ("value", pa.float64()), ("standard_error", pa.float64())]
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LoadedRun:
    """One run as it was when it was read: its record; tables are read at each use.

    Attributes:
        record: state, spec, checkpoints, result, and the last value of every metric (`latest`).
        listing: the run directory as it was, so that later readers need not list it again.
        table: the metrics, where the cache could not be written.
    """

    record: RunRecord
    listing: Listing
    path: Path
    fingerprint: str
    table: pa.Table | None = None

    @property
    def metrics(self) -> pa.Table:
        """`step` int64, one row a step, ascending; every metric float64, null where it was not logged. All attempts merged."""
        if self.table is not None:
            return self.table
        found = _kept(self.path, self.fingerprint, with_metrics=True)
        return read_run(self.listing, run_id=self.record.run_id)[1] if found is None else found[1]

    @property
    def evaluations(self) -> pa.Table:
        """One row for each validated step, data set and statistic, in the order of the steps.

        `step`, `data_source`, `quantity` (`acc`, `reward`), `statistic` (`mean@8`, `pass@4`, ...), `value`, and
        `standard_error`, clustered by problem; null without an error, as in validations during training.
        """
        rows: list[dict[str, Any]] = []
        metrics = self.metrics
        for name in metrics.column_names:
            section, *parts = name.split("/")
            if section not in ("val-core", "val-aux") or len(parts) < 3 or "@" not in parts[-1]:
                continue
            errors = dict(zip(*series(metrics, f"{name}/stderr"), strict=True))
            of = {"data_source": "/".join(parts[:-2]), "quantity": parts[-2], "statistic": parts[-1]}
            rows += [
                {"step": step, **of, "value": value, "standard_error": errors.get(step)}
                for step, value in zip(*series(metrics, name), strict=True)
            ]
        return pa.Table.from_pylist(sorted(rows, key=lambda row: row["step"]), schema=EVALUATIONS_SCHEMA)

    @property
    def generations(self) -> pa.Table:
        """Every answer of an evaluation, in the columns of `opd.evaluation.samples.Sample`; no rows for other runs.

        `numbers`, a map, is empty where the scorer gave none next to `score` and `acc`.
        """
        from opd.evaluation.samples import SCHEMA

        return self._parquet(GENERATIONS_KEY, SCHEMA)

    @property
    def pass_rates(self) -> pa.Table:
        """Each prompt's pass rate, in the columns of `opd.evaluation.pass_rates.PassRate`; no rows without any."""
        from opd.evaluation.pass_rates import PASS_RATES_KEY, SCHEMA

        return self._parquet(PASS_RATES_KEY, SCHEMA)

    def _parquet(self, key: str, schema: pa.Schema) -> pa.Table:
        """Read a file of the run; a missing file gives no rows, a missing column nulls."""
        import pyarrow.parquet as pq

        if not self.listing.store.exists(key):
            return schema.empty_table()
        found = pq.read_table(io.BytesIO(self.listing.store.get(key)))
        return pa.concat_tables([schema.empty_table(), found], promote_options="permissive")


def read_runs(runs: Sequence[str], *, store: str | None, namespace: str | None, context: str | None) -> list[LoadedRun]:
    """Find and read runs, in the order of their names; without names every run of the namespace or store."""
    found = gather(Finder(store=store, namespace=namespace, context=context, patience_s=LONG_PATIENCE_S).places(runs))
    if not found:
        note("no runs in this store: a run appears with its first attempt")
    return found


def gather(places: Sequence[RunPlace]) -> list[LoadedRun]:
    """Read every run that has started, in the order of `places`; folders that are no run are left out."""
    runs = [run for run in in_threads(read_place, places, num_threads=NUM_THREADS) if run is not None]
    records = told_apart([run.record for run in runs])
    return [dataclasses.replace(run, record=record) for run, record in zip(runs, records, strict=True)]


def read_place(place: RunPlace) -> LoadedRun | None:
    """Read one run; return None for a folder that is no run."""
    listing = Listing(place.store)
    if RUN_FILE not in listing:
        return None
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get(CACHE_VARIABLE) or Path(base) / "opd" / "opdctl") / f"v{FORMAT_VERSION}"
    path = folder / f"{hashlib.sha256(place.store.url.encode()).hexdigest()[:32]}.arrow"
    fingerprint, table = listing.fingerprint(), None
    if found := _kept(path, fingerprint, with_metrics=False):
        record = found[0]
    else:
        record, metrics = read_run(listing, run_id=place.run_id)
        table = None if _keep(path, fingerprint, record, metrics) else metrics
    record = as_of_now(record, listing)
    return LoadedRun(record=record, listing=listing, path=path, fingerprint=fingerprint, table=table)


def _kept(path: Path, fingerprint: str, *, with_metrics: bool) -> tuple[RunRecord, pa.Table | None] | None:
    """Return record and metrics from the cache; None where it holds none of this fingerprint."""
    try:
        with pa.OSFile(str(path)) as file:
            reader = pa.ipc.open_file(file)
            metadata = reader.schema.metadata
            if metadata[b"fingerprint"].decode() != fingerprint:
                return None
            table = reader.read_all().replace_schema_metadata(None) if with_metrics else None
            return RunRecord(**json.loads(metadata[b"record"])), table
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException):
        return None


def _keep(path: Path, fingerprint: str, record: RunRecord, metrics: pa.Table) -> bool:
    """Write one Arrow file: the metrics, with record and fingerprint as metadata; return False without a folder for it."""
    metadata = {"fingerprint": fingerprint, "record": json.dumps(dataclasses.asdict(record))}
    whole = metrics.replace_schema_metadata(metadata)
    partial = path.with_name(f".{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.OSFile(str(partial), "wb") as file, pa.ipc.new_file(file, whole.schema, options=options) as writer:
            writer.write_table(whole)
        partial.replace(path)
    except OSError:
        return False
    return True


def in_threads(call: Callable[[Item], Result], items: Sequence[Item], *, num_threads: int) -> list[Result]:
    """Call for each item in threads, counted on a terminal; return the results in the items' order.

    The first failure is raised, and the other calls are not waited for.
    """
    pool = ThreadPoolExecutor(min(num_threads, max(len(items), 1)), thread_name_prefix="opdctl-gather")
    try:
        futures = [pool.submit(call, item) for item in items]
        advance = progress("reading runs", len(items))
        for future in as_completed(futures):
            future.result()
            advance()
        return [future.result() for future in futures]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
