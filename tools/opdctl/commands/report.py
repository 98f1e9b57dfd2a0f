"""`opdctl report`: one self-contained HTML page of one run or several."""

from pathlib import Path
from typing import Annotated

import typer

from opdctl.console import Context, Namespace, Runs, StoreUrl, binary_file
from opdctl.report.page import report_page
from opdctl.runs.compare import best_first, group_runs
from opdctl.runs.gather import read_runs

File = Annotated[Path, typer.Option("--file", "-f", metavar="FILE", help="File to write; `-` is stdout.")]


def report(
    runs: Runs = None,
    store: StoreUrl = None,
    namespace: Namespace = None,
    context: Context = None,
    file: File = Path("report.html"),
) -> None:
    """Write one self-contained HTML page: curves, tables, differences to the first run, conversations, answers, origin.

    Example: `opdctl report my-run -n opd -f report.html`
    """
    found = read_runs(runs or [], store=store, namespace=namespace, context=context)
    if found and not runs:
        base = {record.run_id for record in best_first(group_runs([run.record for run in found]), None)[0].records}
        found = sorted(found, key=lambda run: run.record.run_id not in base)
    if found:
        html = report_page(found)
        with binary_file(file if str(file) == "-" else file.with_name(f"{file.stem}.html")) as writer:
            writer.write(html.encode())
