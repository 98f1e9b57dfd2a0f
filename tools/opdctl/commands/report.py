"""`opdctl report`: one self-contained HTML page of one run or several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opdctl.console import (
    DEFAULT_TIMEOUT_S,
    Context,
    Namespace,
    NoCache,
    StoreUrl,
    Timeout,
    deadline,
    note,
    progress,
)

Runs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN]...",
        help="Runs to show on one page, the first is the base; all of the store, the best finished is the base.",
    ),
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="File to write.", show_default="report.html")]
Samples = Annotated[int, typer.Option("--samples", min=0, help="Sample generations per run; of many runs fewer.")]


def report(
    runs: Runs = None,
    store: StoreUrl = None,
    namespace: Namespace = None,
    context: Context = None,
    output: Output = None,
    samples: Samples = 12,
    no_cache: NoCache = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Write one self-contained HTML page: interactive curves, tables, what differs between the specs, sample texts, provenance.

    An agent run's conversations get a page of their own beside it (REPORT-conversations-N.html), linked from it; so do the
    tokens of a distillation's sample rollouts (REPORT-tokens-N.html).

    Many runs share tables and pictures: what differs in each from the base, and who ends highest and lowest.

    Examples: `opdctl report quickstart --store build/quickstart/store -o report.html` · `opdctl report my-run -n opd`
    """
    from opdctl.report.beside import write_pages
    from opdctl.report.page import MAX_SEPARATE_RUNS, render_page
    from opdctl.runs.cache import cache_folder
    from opdctl.runs.compare import best_first, group_runs
    from opdctl.runs.export import binary_file
    from opdctl.runs.gather import gather
    from opdctl.runs.targets import find_runs

    target = output or Path("report.html")

    def put(name: str, html: str) -> None:
        file = target.with_name(name)
        with binary_file(file) as writer:
            writer.write(html.encode())
        note(f"wrote {file}")

    with cache_folder(use_cache=not no_cache) as folder, deadline(timeout):
        places = find_runs(runs or [], store=store, namespace=namespace, context=context, timeout_s=timeout)
        stores = {place.store.url: place.store for place in places}
        with progress("reading runs", len(places)) as advance:
            found = gather(places, folder=folder, on_done=advance)
        if not found:
            note("no runs in this store: a run appears with its first attempt")
            return
        if not runs:
            base = {record.run_id for record in best_first(group_runs([run.record for run in found]), None)[0].records}
            found = sorted(found, key=lambda run: run.record.run_id not in base)
        kept = write_pages(found, stores, put, stem=target.stem, max_with_tokens=MAX_SEPARATE_RUNS)
        put(target.name, render_page(found, stores, num_samples=samples, kept=kept))
