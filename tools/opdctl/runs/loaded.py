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
from opd.runs import tokens
from opdctl.console import DEFAULT_TIMEOUT_S
from opdctl.errors import usage_error
from opdctl.runs.compare import GENERATIONS_KEY, Group, best_first, group_runs
from opdctl.runs.compare_view import compare_groups, default_metrics
from opdctl.runs.gather import GatheredRun, cache_folder, gather
from opdctl.runs.metrics import series
from opdctl.runs.places import Finder, RunPlace
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
        with cache_folder() as folder:
            return gather([self._place], folder=folder)[0]

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

    @cached_property
    def tokens(self) -> pa.Table:
        """The training rollouts that were kept: `step` and the columns of `opd.runs.tokens.TokenRow`, lists by token."""
        keys = sorted(info.key for info in self._place.store.list(f"{tokens.FOLDER}/"))
        kept = [tokens.from_bytes(self._place.store.get(key)) for key in keys if key.endswith(".json")]
        rows = [{"step": step.step, **row.model_dump()} for step in kept for row in step.rows]
        return pa.Table.from_pylist(rows, schema=_TOKENS_SCHEMA)

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
_TOKENS_SCHEMA = pa.schema(
    [("step", pa.int64()), ("data_index", pa.int64()), ("sample", pa.int64()), ("turn", pa.int64()), ("prompt", pa.string()),
     ("score", pa.float64()), ("num_tokens", pa.int64()), ("texts", pa.list_(pa.string())), ("trained", pa.list_(pa.bool_())),
     ("kept", pa.list_(pa.bool_())), ("entropy", pa.list_(pa.float64())), ("divergence", pa.list_(pa.float64()))]
)  # fmt: skip


def load(
    run: str,
    *,
    store: str | None = None,
    namespace: str | None = None,
    context: str | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> LoadedRun:
    """Load a run by its URL or folder, its experiment file, or its name in a store or a namespace.

    Args:
        store: URL of the store; $OPDCTL_STORE by default, else the store of the run's experiment in the namespace.
        timeout_s: limit of each request to the store.

    Raises:
        ToolError: no such run, or no store is named. StoreError: the store is unreachable or rejects the request.
    """
    return LoadedRun(Finder(store=store, namespace=namespace, context=context, timeout_s=timeout_s).place(run))


def load_all(store: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> list[LoadedRun]:
    """Load every run of a store, by name; raise as `load`."""
    return [LoadedRun(place) for place in Finder(store=store, timeout_s=timeout_s).places([])]


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
    rows = [row for group in group_runs([run.record for run in runs]) for row in _band_of(group, runs, metric)]
    schema = pa.schema(
        [("group", pa.string()), ("step", pa.int64()), *((name, pa.float64()) for name in ("mean", "low", "high")),
         ("num_runs", pa.int64())]
    )  # fmt: skip
    columns = [
        pa.array([row[number] for row in rows], field.type, from_pandas=True) for number, field in enumerate(schema)
    ]
    return pa.table(columns, schema=schema)


def _band_of(group: Group, runs: Sequence[LoadedRun], metric: str) -> list[tuple[Any, ...]]:
    urls = {record.url for record in group.records}
    by_step: dict[int, list[float]] = {}
    for run in runs:
        if run.record.url in urls:
            for step, value in zip(*series(run.metrics, metric), strict=True):
                by_step.setdefault(int(step), []).append(float(value))
    return [
        (group.name, step, (mean := clustered(values)).value, *mean.interval(len(values) - 1), len(values))
        for step, values in sorted(by_step.items())
    ]
