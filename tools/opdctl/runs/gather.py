"""Reader of many runs: lists and reads them in threads."""

import dataclasses
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from opd.runs.identity import RUN_FILE
from opd.store.transfer import in_threads
from opdctl.console import note
from opdctl.runs.find import Finder, RunPlace
from opdctl.runs.listing import Listing
from opdctl.runs.metrics import series
from opdctl.runs.record import RunRecord, read_run, told_apart

# Downloads wait for the network, Arrow parses without the GIL; each run in flight holds its own bytes only.
NUM_THREADS = 6
GENERATIONS_KEY = "eval/generations.parquet"
EVALUATIONS_SCHEMA = pa.schema(
    [("step", pa.int64()), ("data_source", pa.string()), ("quantity", pa.string()), ("statistic", pa.string()),
     ("value", pa.float64()), ("standard_error", pa.float64())]
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LoadedRun:
    """One run as it was when it was read.

    Attributes:
        record: state, spec, checkpoints, result, and the last value of every metric (`latest`).
        listing: the run directory as it was, so that later readers need not list it again.
        metrics: `step` int64, one row a step, ascending; every metric float64, null where it was not logged. All attempts
            merged.
    """

    record: RunRecord
    listing: Listing
    metrics: pa.Table

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
        import pyarrow.parquet as pq

        from opd.evaluation.samples import SCHEMA

        if not self.listing.store.exists(GENERATIONS_KEY):
            return SCHEMA.empty_table()
        found = pq.read_table(io.BytesIO(self.listing.store.get(GENERATIONS_KEY)))
        return pa.concat_tables([SCHEMA.empty_table(), found], promote_options="permissive").select(SCHEMA.names)


def read_runs(runs: Sequence[str], *, store: str | None, namespace: str | None, context: str | None) -> list[LoadedRun]:
    """Find and read runs, in the order of their names; without names every run of the namespace or store."""
    found = gather(Finder(store=store, namespace=namespace, context=context).places(runs))
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
    record, metrics = read_run(listing, run_id=place.run_id)
    return LoadedRun(record=record, listing=listing, metrics=metrics)
