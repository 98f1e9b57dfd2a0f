"""Runs from Python: `opdctl.load`, comparisons and bands as Arrow tables."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from opd.evaluation.estimators import clustered
from opdctl.runs.compare import compare_runs, group_runs
from opdctl.runs.gather import LoadedRun, read_runs
from opdctl.runs.metrics import series

__all__ = ["LoadedRun", "band", "compare", "load", "load_all"]
_NUMBERS = ("before", "after", "difference", "standard_error", "low", "high")
_DIFFERENCES = pa.schema(
    [*((name, pa.string()) for name in ("base", "group", "quantity")), *((name, pa.float64()) for name in _NUMBERS),
     ("is_notable", pa.bool_()), ("num_pairs", pa.int64()), ("paired_by", pa.string()), ("remark", pa.string())]
)  # fmt: skip
_BAND = pa.schema(
    [("group", pa.string()), ("step", pa.int64()), *((name, pa.float64()) for name in ("mean", "low", "high")),
     ("num_runs", pa.int64())]
)  # fmt: skip


def load(run: str, *, store: str | None = None, namespace: str | None = None, context: str | None = None) -> LoadedRun:
    """Load a run by its URL or folder, or its name in a store or a namespace.

    Args:
        store: URL of the store; the store of the run's experiment in the namespace, or $OPDCTL_STORE, by default.

    Raises:
        ToolError: no such run, or no store is named. StoreError: the store is unreachable or rejects the request.
    """
    return read_runs([run], store=store, namespace=namespace, context=context)[0]


def load_all(store: str) -> list[LoadedRun]:
    """Load every run of a store, by name; raise as `load`."""
    return read_runs([], store=store, namespace=None, context=None)


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
    return _table([row for item in compare_runs(runs, base, metrics) for row in item.to_rows()], _DIFFERENCES)


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
            row = (group.name, step, mean.value, *mean.interval(len(values) - 1), len(values))
            rows.append(dict(zip(_BAND.names, row, strict=True)))
    return _table(rows, _BAND)


def _table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Return the rows as a table, NaN as null."""
    columns = [pa.array([row[field.name] for row in rows], field.type, from_pandas=True) for field in schema]
    return pa.table(columns, schema=schema)
