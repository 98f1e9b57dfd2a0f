"""Writes collected runs as tables for people, as JSON, CSV and Parquet for programs; files appear when complete."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from opdctl.console import PLAIN, stdout
from opdctl.redact import redact_tree
from opdctl.runs.gather import GatheredRun
from opdctl.runs.tables import checkpoints_table, eval_table, numbers_table, runs_table


def write(runs: Sequence[GatheredRun], *, format: str, output: Path | None) -> None:
    """Writes the runs to a file, or to stdout.

    Args:
        format: `table`, `json` (one object: `runs`), `csv` or `parquet` (one row a run and step, all metrics as columns).
    """
    if format == "table":
        _write_tables(runs, output)
    elif format == "json":
        records = [redact_tree(run.record.to_json()) for run in runs]
        text = json.dumps({"runs": finite(records)}, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        with binary_file(output) as file:
            file.write(text.encode())
    elif format == "csv":
        _write_csv(runs, output)
    else:
        assert output is not None
        with binary_file(output) as file, pq.ParquetWriter(file, _schema(runs), compression="zstd") as writer:
            for table in _tables(runs):
                writer.write_table(table)


def _write_tables(runs: Sequence[GatheredRun], output: Path | None) -> None:
    from rich.console import Console

    def show(console: Console) -> None:
        console.print(runs_table([run.record for run in runs]))
        for run in runs:
            for table in (eval_table(run.record), numbers_table(run.record)):
                if table is not None:
                    console.print(table)
            if len(runs) == 1 and run.record.checkpoints:
                console.print(checkpoints_table(run.record))

    if output is None:
        show(stdout())
        return
    with binary_file(output) as file:
        console = Console(file=io.StringIO(), record=True, width=200, highlight=False, **PLAIN)
        show(console)
        file.write(console.export_text().encode())


def _write_csv(runs: Sequence[GatheredRun], output: Path | None) -> None:
    with binary_file(output) as file, pa_csv.CSVWriter(file, _schema(runs)) as writer:
        for table in _tables(runs):
            writer.write_table(table)


def _schema(runs: Iterable[GatheredRun]) -> pa.Schema:
    """`run_id`, `step`, then every metric that any of the runs has, sorted."""
    names = sorted({name for run in runs for name in run.metrics().column_names} - {"step"})
    fields = [pa.field("run_id", pa.string()), pa.field("step", pa.int64())]
    return pa.schema(fields + [pa.field(name, pa.float64()) for name in names])


def _tables(runs: Sequence[GatheredRun]) -> Iterator[pa.Table]:
    """Each run's metrics in the common schema, one at a time."""
    schema = _schema(runs)
    for run in runs:
        metrics = run.metrics()
        columns: list[Any] = [pa.array([run.record.run_id] * metrics.num_rows, type=pa.string())]
        for field in list(schema)[1:]:
            has_it = field.name in metrics.column_names
            columns.append(metrics[field.name] if has_it else pa.nulls(metrics.num_rows, type=field.type))
        yield pa.table(columns, schema=schema)


@contextmanager
def binary_file(output: Path | None) -> Iterator[IO[bytes]]:
    """Stdout (also as `-`), or a file that appears only when all of it is written."""
    if output is None or str(output) == "-":
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_name(f".{output.name}.{os.getpid()}.part")
    try:
        with open(partial, "wb") as file:
            yield file
        partial.replace(output)
    finally:
        partial.unlink(missing_ok=True)


def finite(value: Any) -> Any:
    """JSON has no NaN or infinity: they are written as the strings that the trainer's metrics use."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [finite(inner) for inner in value]
    if isinstance(value, float) and value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")) and isinstance(value, float):
        return "Infinity" if value > 0 else "-Infinity"
    return value
