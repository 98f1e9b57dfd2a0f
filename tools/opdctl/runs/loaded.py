"""Runs from Python: `opdctl.load`, and Arrow tables that are read at their first use."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from opd.evaluation.estimators import clustered
from opd.evaluation.pass_rates import PASS_RATES_KEY
from opd.evaluation.pass_rates import SCHEMA as PASS_RATES_SCHEMA
from opd.evaluation.samples import SCHEMA as GENERATIONS_SCHEMA
from opdctl.console import usage_error
from opdctl.runs.compare import GENERATIONS_KEY, best_first, compare_groups, default_metrics, group_runs
from opdctl.runs.find import LONG_PATIENCE_S, Finder, RunPlace
from opdctl.runs.gather import GatheredRun, gather
from opdctl.runs.metrics import series
from opdctl.runs.record import RunRecord

ERROR_SUFFIX = "/stderr"


class LoadedRun:
    """One run. Each part is read once, at its first use: load the run again for newer results."""

    def __init__(self, place: RunPlace):
        self.name = place.run_id
        self.url = place.store.url
        self._place = place

    def __repr__(self) -> str:
        return f"LoadedRun({self.name!r}, {self.url!r})"

    @cached_property
    def _gathered(self) -> GatheredRun:
        return gather([self._place])[0]

    @property
    def record(self) -> RunRecord:
        """State, spec, checkpoints, result, and the last value of every metric (`latest`)."""
        return self._gathered.record

    @cached_property
    def metrics(self) -> pa.Table:
        """`step` int64, one row a step, ascending; every metric float64, null where it was not logged. All attempts merged."""
        return self._gathered.metrics()

    @cached_property
    def evaluations(self) -> pa.Table:
        """One row for each validated step, data set and statistic, in the order of the steps.

        `step`, `data_source`, `quantity` (`acc`, `reward`), `statistic` (`mean@8`, `pass@4`, ...), `value`, and
        `standard_error`, clustered by problem; null without an error, as in validations during training.
        """
        rows: list[dict[str, Any]] = []
        for name in self.metrics.column_names:
            section, *parts = name.split("/")
            if section not in ("val-core", "val-aux") or len(parts) < 3 or "@" not in parts[-1]:
                continue
            errors = dict(zip(*map(np.ndarray.tolist, series(self.metrics, name + ERROR_SUFFIX)), strict=True))
            of = {"data_source": "/".join(parts[:-2]), "quantity": parts[-2], "statistic": parts[-1]}
            rows += [
                {"step": step, **of, "value": value, "standard_error": errors.get(step)}
                for step, value in zip(*map(np.ndarray.tolist, series(self.metrics, name)), strict=True)
            ]
        rows.sort(key=lambda row: row["step"])
        return pa.Table.from_pylist(rows, schema=_EVALUATIONS_SCHEMA)

    @cached_property
    def generations(self) -> pa.Table:
        """Every answer of an evaluation, in the columns of `opd.evaluation.Sample`; no rows for other runs.

        `numbers`, a map, is empty where the scorer gave none next to `score` and `acc`.
        """
        return self._parquet(GENERATIONS_KEY, GENERATIONS_SCHEMA)

    @cached_property
    def pass_rates(self) -> pa.Table:
        """Each prompt's pass rate, in the columns of `opd.evaluation.pass_rates.PassRate`; no rows without any."""
        return self._parquet(PASS_RATES_KEY, PASS_RATES_SCHEMA)

    def _parquet(self, key: str, schema: pa.Schema) -> pa.Table:
        """Read a file of the run; a missing file gives no rows, a missing column nulls."""
        if not self._place.store.exists(key):
            return schema.empty_table()
        found = pq.read_table(io.BytesIO(self._place.store.get(key)))
        return pa.concat_tables([schema.empty_table(), found], promote_options="permissive")


_EVALUATIONS_SCHEMA = pa.schema(
    [("step", pa.int64()), ("data_source", pa.string()), ("quantity", pa.string()), ("statistic", pa.string()),
     ("value", pa.float64()), ("standard_error", pa.float64())]
)  # fmt: skip


def load(run: str, *, store: str | None = None, namespace: str | None = None, context: str | None = None) -> LoadedRun:
    """Load a run by its URL or folder, its experiment file, or its name in a store or a namespace.

    Args:
        store: URL of the store; the store of the run's experiment in the namespace, or $OPDCTL_STORE, by default.

    Raises:
        ToolError: no such run, or no store is named. StoreError: the store is unreachable or rejects the request.
    """
    finder = Finder(store=store, namespace=namespace, context=context, patience_s=LONG_PATIENCE_S)
    return LoadedRun(finder.places([run])[0])


def load_all(store: str) -> list[LoadedRun]:
    """Load every run of a store, by name; raise as `load`."""
    return [LoadedRun(place) for place in Finder(store=store, patience_s=LONG_PATIENCE_S).places([])]


def compare(runs: Sequence[LoadedRun], *, base: str | None = None, metrics: Sequence[str] = ()) -> pa.Table:
    """Compare each group of runs with the base: one row a group and quantity.

    Runs that differ in nothing but their seed are one group. Evaluations (mean@n, pass@k) are paired by problem, metrics
    by seed. `low` and `high` bound the difference's 95 % interval by Student's t; null without an error.

    Args:
        base: name of a run of the base; by default the best group that has finished.
        metrics: metrics whose last values are compared; loss, accuracy and validations by default.

    Returns:
        `base`, `group`, `quantity`, `before`, `after`, `difference`, `standard_error`, `low`, `high`, `is_notable`,
        `num_pairs`, `paired_by`, `remark`.

    Raises:
        ToolError: fewer than two groups, no such base, or a metric that no run logged.
    """
    records = [run.record for run in runs]
    groups = best_first(group_runs(records), base) if records else []
    if len(groups) < 2:
        raise usage_error("compare needs runs of two specs or more", fix="seeds of one spec: opdctl.band(runs, METRIC)")
    found = compare_groups(groups, {run.url: run._place.store for run in runs}, metrics or default_metrics(records))
    rows = [row for item in found for row in item.to_rows()]
    texts = dict.fromkeys(("base", "group", "quantity", "paired_by", "remark"), pa.string())
    types = {**texts, "is_notable": pa.bool_(), "num_pairs": pa.int64()}
    names = list(rows[0]) if rows else list(types)
    columns = [pa.array([row[name] for row in rows], types.get(name, pa.float64()), from_pandas=True) for name in names]
    return pa.table(columns, names=names)


def band(runs: Sequence[LoadedRun], metric: str) -> pa.Table:
    """Return a metric over the steps: the mean of each group, and its 95 % interval by Student's t over the seeds.

    Returns:
        `group`, `step` int64, `mean`, `low`, `high` (null for a single run), `num_runs` that logged it at the step.
    """
    rows = []
    for group in group_runs([run.record for run in runs]):
        urls = {record.url for record in group.records}
        by_step: dict[int, list[float]] = {}
        for run in runs:
            for step, value in zip(*series(run.metrics, metric), strict=True) if run.record.url in urls else ():
                by_step.setdefault(int(step), []).append(float(value))
        for step, values in sorted(by_step.items()):
            mean = clustered(values)
            rows.append((group.name, step, mean.value, *mean.interval(len(values) - 1), len(values)))
    schema = pa.schema(
        [("group", pa.string()), ("step", pa.int64()), *((name, pa.float64()) for name in ("mean", "low", "high")),
         ("num_runs", pa.int64())]
    )  # fmt: skip
    columns = [
        pa.array([row[number] for row in rows], field.type, from_pandas=True) for number, field in enumerate(schema)
    ]
    return pa.table(columns, schema=schema)
