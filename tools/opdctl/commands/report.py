"""`opdctl report`: one self-contained HTML page of one run or several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opdctl.console import Context, Namespace, StoreUrl, binary_file, note, progress

Runs = Annotated[
    list[str] | None,
    typer.Argument(metavar="RUN", help="Runs, the base first; else all of the store."),
]
File = Annotated[Path, typer.Option("--file", "-f", metavar="FILE", help="File to write; `-` is stdout.")]
Samples = Annotated[int, typer.Option("--samples", min=0, metavar="N", help="Number of sample answers.")]


def report(
    runs: Runs = None,
    store: StoreUrl = None,
    namespace: Namespace = None,
    context: Context = None,
    file: File = Path("report.html"),
    samples: Samples = 12,
) -> None:
    """Write one self-contained HTML page: curves, tables, differences, sample answers, origin.

    Conversations and tokens get pages next to it (FILE-conversations-N.html, FILE-tokens-N.html).

    Example: `opdctl report my-run -n opd -f report.html`
    """
    from opdctl.report.page import write_report
    from opdctl.runs.compare import best_first, group_runs
    from opdctl.runs.find import LONG_PATIENCE_S, Finder
    from opdctl.runs.gather import gather

    def put(name: str, html: str) -> None:
        with binary_file(file if str(file) == "-" else file.with_name(name)) as writer:
            writer.write(html.encode())

    places = Finder(store=store, namespace=namespace, context=context, patience_s=LONG_PATIENCE_S).places(runs or [])
    with progress("reading runs", len(places)) as advance:
        found = gather(places, on_done=advance)
    if not found:
        note("no runs in this store: a run appears with its first attempt")
        return
    if not runs:
        base = {record.run_id for record in best_first(group_runs([run.record for run in found]), None)[0].records}
        found = sorted(found, key=lambda run: run.record.run_id not in base)
    write_report(found, put, stem=file.stem, num_samples=samples)
