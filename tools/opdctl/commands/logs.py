"""`opdctl logs`: the driver's log over all attempts, from the object store."""

from __future__ import annotations

from typing import Annotated

import typer

from opdctl.console import DEFAULT_TIMEOUT_S, StoreUrl, deadline, note

Run = Annotated[str, typer.Argument(metavar="RUN", help="The run.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on as the log grows, until the run ends.")]
Attempt = Annotated[int | None, typer.Option("--attempt", min=1, help="This attempt only; all by default.")]
Tail = Annotated[int | None, typer.Option("--tail", min=1, help="Begin with the last this many lines.")]
LogTimeout = Annotated[
    float | None, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="Give up after this; none with --follow.")
]


def logs(
    run: Run,
    store: StoreUrl = None,
    follow: Follow = False,
    attempt: Attempt = None,
    tail: Tail = None,
    timeout: LogTimeout = None,
) -> None:
    """Print a run's log over all its attempts; with -f go on until it ends.

    Example: `opdctl logs quickstart --store build/quickstart/store --tail 20`
    """
    import contextlib

    from opdctl.follow import LogReader
    from opdctl.targets import find_run

    limit = contextlib.nullcontext() if follow and timeout is None else deadline(timeout or DEFAULT_TIMEOUT_S)
    with limit:
        place = find_run(run, store=store, timeout_s=timeout or DEFAULT_TIMEOUT_S)
        reader = LogReader(place.store, attempt=attempt, tail=tail)
        num_lines = reader.follow() if follow else reader.print_new()
        if num_lines == 0 and not follow:
            note(f"no log yet at {place.store.url}: the first lines appear some seconds after the start")
