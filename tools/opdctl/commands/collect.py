"""`opdctl collect`: metrics merged over attempts, evaluation tables and checkpoints, of one run or of a whole store."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from opdctl.console import DEFAULT_TIMEOUT_S, Context, Namespace, NoCache, StoreUrl, Timeout, deadline, note, progress
from opdctl.errors import usage_error


class Format(StrEnum):
    """How the results are written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


def collect(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="Runs; by default all of the store."),
    ] = None,
    store: StoreUrl = None,
    namespace: Namespace = None,
    context: Context = None,
    format: Annotated[
        Format | None, typer.Option("--format", help="What to write; what --output ends in by default, else a table.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write; stdout by default.")] = None,
    no_cache: NoCache = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Collect results: metrics merged over all attempts, evaluation tables, checkpoints.

    `table` and `json` say how each run stands; `csv` and `parquet` hold every metric of every step.

    Examples: `opdctl collect manifests/experiments/quickstart.yaml` ·
    `opdctl collect --store s3://experiments/opd -o all.parquet`
    """
    from opdctl.runs.cache import cache_folder
    from opdctl.runs.export import write
    from opdctl.runs.gather import gather
    from opdctl.runs.targets import find_runs

    if format is None:
        suffix = "" if output is None else output.suffix.removeprefix(".")
        if suffix not in ("", "txt", *Format):
            known = ", ".join(f".{name}" for name in (*Format, "txt") if name != Format.TABLE)
            raise usage_error(
                f"--output {output}: nothing is written as .{suffix}", fix=f"end it in one of {known}, or say --format"
            )
        format = Format(suffix) if suffix in set(Format) else Format.TABLE
    if format is Format.PARQUET and output is None:
        raise usage_error("--format parquet writes a file", fix="name it with --output FILE")
    with deadline(timeout), cache_folder(use_cache=not no_cache) as folder:
        places = find_runs(runs or [], store=store, namespace=namespace, context=context, timeout_s=timeout)
        with progress("collecting", len(places)) as advance:
            found = gather(places, folder=folder, on_done=advance)
        if not found:
            note("no runs in this store: a run appears with its first attempt")
            return
        write(found, format=format.value, output=output)
    if output is not None and str(output) != "-":
        note(f"wrote {output}")
    for run in found:
        for problem in run.record.problems:
            note(f"warning: {run.record.run_id}: {problem}")
