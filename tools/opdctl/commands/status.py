"""`opdctl status`: one screen about one run, from the store."""

from __future__ import annotations

from typing import Annotated

import typer

from opdctl.console import DEFAULT_TIMEOUT_S, NoCache, StoreUrl, Timeout, deadline, stdout

Run = Annotated[str, typer.Argument(metavar="RUN", help="The run.")]


def status(run: Run, store: StoreUrl = None, no_cache: NoCache = False, timeout: Timeout = DEFAULT_TIMEOUT_S) -> None:
    """Show one run: state, step, loss, accuracy, time left, every attempt and how it ended, checkpoints.

    Example: `opdctl status quickstart --store build/quickstart/store`
    """
    from opdctl.gather import cache_folder, gather
    from opdctl.listing import Listing
    from opdctl.standing import attempt_lines
    from opdctl.tables import status_screen
    from opdctl.targets import find_run

    with deadline(timeout), cache_folder(use_cache=not no_cache) as folder:
        place = find_run(run, store=store, timeout_s=timeout)
        [found] = gather([place], folder=folder)
        attempts = attempt_lines(Listing(place.store))
    stdout().print(status_screen(found.record, attempts))
