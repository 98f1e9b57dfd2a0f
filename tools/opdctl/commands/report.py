"""`opdctl report`: one self-contained HTML page of one run or several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import unquote

import typer

from opdctl.console import DEFAULT_TIMEOUT_S, Context, Namespace, NoCache, StoreUrl, Timeout, deadline, note, progress

Runs = Annotated[
    list[str] | None,
    typer.Argument(metavar="[RUN]...", help="Runs to show on one page, the first is the base; all of the store."),
]
Output = Annotated[Path, typer.Option("--output", "-o", help="File to write.")]
Samples = Annotated[int, typer.Option("--samples", min=0, help="Sample generations per run; of many runs fewer.")]


def report(
    runs: Runs = None,
    store: StoreUrl = None,
    namespace: Namespace = None,
    context: Context = None,
    output: Output = Path("report.html"),
    samples: Samples = 12,
    no_cache: NoCache = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Write one self-contained HTML page: curves, tables, what differs between the specs, sample generations.

    An agent run's conversations get a page of their own beside it (REPORT-conversations-N.html), linked from it.

    Many runs share tables and pictures: what differs in each from the base, and who ends highest and lowest.

    Example: `opdctl report quickstart --store build/quickstart/store -o report.html`
    """
    from opdctl.report.conversations import write_pages
    from opdctl.report.page import render_page
    from opdctl.runs.export import binary_file
    from opdctl.runs.gather import cache_folder, gather
    from opdctl.runs.targets import find_runs

    with deadline(timeout), cache_folder(use_cache=not no_cache) as folder:
        places = find_runs(runs or [], store=store, namespace=namespace, context=context, timeout_s=timeout)
        with progress("reading runs", len(places)) as advance:
            found = gather(places, folder=folder, on_done=advance)
        stores = {place.store.url: place.store for place in places}
        if not found:
            note("no runs in this store: a run appears with its first attempt")
            return
        links = write_pages(found, stores, output)
        html = render_page(found, stores, num_samples=samples, conversations=links)
        with binary_file(output) as file:
            file.write(html.encode())
    for page in (output.with_name(unquote(link)) for link in links.values()):
        note(f"wrote {page}")
    note(f"wrote {output}")
