"""`opdctl report`: one self-contained HTML page of one run or several, written or served while they go on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opdctl.console import (
    DEFAULT_TIMEOUT_S,
    Context,
    Namespace,
    NoCache,
    StoreUrl,
    Timeout,
    deadline,
    leave_at_once,
    note,
    progress,
)
from opdctl.errors import EXIT_OK, ToolError, usage_error

if TYPE_CHECKING:
    from opdctl.report.beside import Write
    from opdctl.runs.gather import GatheredRun

Runs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN]...",
        help="Runs to show on one page, the first is the base; all of the store, the best finished is the base.",
    ),
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="File to write.", show_default="report.html")]
Samples = Annotated[int, typer.Option("--samples", min=0, help="Sample generations per run; of many runs fewer.")]
Live = Annotated[bool, typer.Option("--live", help="Serve the page to this machine, and refresh it, until Ctrl-C.")]
Port = Annotated[
    int | None, typer.Option("--port", min=0, max=65535, help="Of --live; any free one by default.", show_default=False)
]

NO_RUNS = "no runs in this store: a run appears with its first attempt"


def report(
    runs: Runs = None,
    store: StoreUrl = None,
    namespace: Namespace = None,
    context: Context = None,
    output: Output = None,
    samples: Samples = 12,
    live: Live = False,
    port: Port = None,
    no_cache: NoCache = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Write one self-contained HTML page: interactive curves, tables, what differs between the specs, sample texts, provenance.

    An agent run's conversations get a page of their own beside it (REPORT-conversations-N.html), linked from it; so do the
    tokens of a distillation's sample rollouts (REPORT-tokens-N.html).

    Many runs share tables and pictures: what differs in each from the base, and who ends highest and lowest.

    With --live nothing is written: the pages are served at an address of this machine, which everybody on it can read, and
    follow the runs while a browser shows them.

    Examples: `opdctl report quickstart --store build/quickstart/store -o report.html` · `opdctl report my-run -n opd --live`
    """
    from opdctl.report.beside import write_pages
    from opdctl.report.page import MAX_SEPARATE_RUNS, render_page
    from opdctl.runs.cache import cache_folder
    from opdctl.runs.compare import best_first, group_runs
    from opdctl.runs.export import binary_file
    from opdctl.runs.gather import gather
    from opdctl.runs.targets import find_runs

    if live and output is not None:
        raise usage_error("--live writes no file, and --output names one", fix="leave one of the two out")
    if port is not None and not live:
        raise usage_error("--port is the port of --live", fix="add --live, or leave --port out")
    target = output or Path("report.html")
    with cache_folder(use_cache=not no_cache) as folder:
        stores = {}

        def look(*, is_first: bool = False) -> list[GatheredRun]:
            places = find_runs(runs or [], store=store, namespace=namespace, context=context, timeout_s=timeout)
            stores.update({place.store.url: place.store for place in places})
            if not is_first:
                if not (found := gather(places, folder=folder)):
                    raise ToolError(NO_RUNS)
                return found
            with progress("reading runs", len(places)) as advance:
                return gather(places, folder=folder, on_done=advance)

        def make(found: Sequence[GatheredRun], write: Write) -> None:
            if not runs:
                base = {
                    record.run_id for record in best_first(group_runs([run.record for run in found]), None)[0].records
                }
                found = sorted(found, key=lambda run: run.record.run_id not in base)
            kept = write_pages(found, stores, write, stem=target.stem, max_with_tokens=MAX_SEPARATE_RUNS)
            write(target.name, render_page(found, stores, num_samples=samples, kept=kept, is_live=live))

        def put(name: str, html: str) -> None:
            file = target.with_name(name)
            with binary_file(file) as writer:
                writer.write(html.encode())
            note(f"wrote {file}")

        with deadline(timeout):
            found = look(is_first=True)
            if not found:
                note(NO_RUNS)
                return
            if not live:
                make(found, put)
                return
        _serve(look, make, port=port or 0)
    leave_at_once(EXIT_OK)  # a look that still waits for its store is not waited for


def _serve(
    look: Callable[[], Sequence[GatheredRun]], make: Callable[[Sequence[GatheredRun], Write], None], *, port: int
) -> None:
    """Serves until Ctrl-C.

    Raises:
        ToolError: the port is taken.
    """
    from opdctl.report.live import LiveServer, Source

    try:
        server = LiveServer(Source(look, make), port=port)
    except OSError as error:
        raise usage_error(
            f"port {port} of this machine cannot be had: {error.strerror}",
            fix="choose another with --port, or leave it out",
        ) from error
    with server, contextlib.suppress(KeyboardInterrupt):
        print(f"report: {server.url} (Ctrl-C ends it)", flush=True)
        server.serve_forever()
    note("closed")
