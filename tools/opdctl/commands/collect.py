"""`opdctl collect`: metrics merged over attempts, evaluation tables and checkpoints, of one run or of a whole store."""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import typer

from opdctl.console import Context, Namespace, Runs, StoreUrl, binary_file, note, print_json, usage_error
from opdctl.runs.gather import LoadedRun, read_runs
from opdctl.runs.sheets import checkpoints_sheet, evaluation_sheet, runs_sheet

FORMS = ("table", "json", "csv", "parquet")
Output = Annotated[
    Literal["table", "json", "csv", "parquet"] | None,
    typer.Option("--output", "-o", help="Form; else --file's ending."),
]
File = Annotated[Path | None, typer.Option("--file", "-f", metavar="FILE", help="File to write, no folder.")]


def collect(
    runs: Runs = None,
    store: StoreUrl = None,
    namespace: Namespace = None,
    context: Context = None,
    output: Output = None,
    file: File = None,
) -> None:
    """Collect results: state, evaluations and checkpoints (table, json), or every metric of every step (csv, parquet).

    Examples: `opdctl collect my-run -n opd` · `opdctl collect --store URL -f all.parquet`
    """
    form = _form(output, file)
    found = read_runs(runs or [], store=store, namespace=namespace, context=context)
    if found:
        _write(found, form, file)
    for record in (run.record for run in found):
        for problem in record.problems:
            note(f"warning: {record.run_id}: {problem}")


def _form(output: str | None, file: Path | None) -> str:
    """Return the form that --output or the file's ending names."""
    suffix = "" if file is None else file.suffix.removeprefix(".")
    if file is not None and file.is_dir():
        raise usage_error(f"--file {file} is a folder", fix=f"name a file in it, such as {file / 'runs.csv'}")
    if output is None and suffix and suffix not in FORMS:
        known = ", ".join(f".{name}" for name in FORMS[1:])
        raise usage_error(f"--file {file}: .{suffix} is no form of results", fix=f"end it in one of {known}, or use -o")
    form = output or suffix or "table"
    if form == "parquet" and file is None:
        raise usage_error("Parquet is written to a file", fix="name it with --file FILE")
    return form


def _write(runs: Sequence[LoadedRun], form: str, file: Path | None) -> None:
    """Write the runs: `json` is one object, `csv` and `parquet` have one row a run and step, one column a metric."""
    with binary_file(file) as writer:
        if form in FORMS[:2]:
            text = io.StringIO()
            if form == "json":
                print_json({"runs": [run.record.to_json() for run in runs]}, file=text)
            else:
                records = [run.record for run in runs]
                checkpoints = checkpoints_sheet(records[0]) if len(records) == 1 else None
                sheets = (runs_sheet(records), evaluation_sheet(records), checkpoints)
                print(*filter(None, sheets), sep="\n\n", file=text)
            writer.write(text.getvalue().encode())
            return
        names = sorted({name for run in runs for name in run.metrics.column_names} - {"step"})
        fields = [("run_id", pa.string()), ("step", pa.int64()), *((name, pa.float64()) for name in names)]
        schema = pa.schema(fields)
        make = pa_csv.CSVWriter if form == "csv" else lambda *args: pq.ParquetWriter(*args, compression="zstd")
        with make(writer, schema) as rows:
            for table in _tables(runs, schema):
                rows.write_table(table)


def _tables(runs: Sequence[LoadedRun], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield each run's metrics in the common schema, one run at a time."""
    for run in runs:
        own = dict(zip(run.metrics.column_names, run.metrics.itercolumns(), strict=True))
        num_rows = run.metrics.num_rows
        run_ids = pa.array([run.record.run_id] * num_rows, type=pa.string())
        columns = [own[name] if name in own else pa.nulls(num_rows, type=pa.float64()) for name in schema.names[1:]]
        yield pa.table([run_ids, *columns], schema=schema)
