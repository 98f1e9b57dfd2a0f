"""`opdctl wait`: waits for a run's end; the exit code is its result."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from opdctl.console import DEFAULT_TIMEOUT_S, StoreUrl, deadline, note
from opdctl.errors import ToolError

Run = Annotated[str, typer.Argument(metavar="RUN", help="The run.")]
Silent = Annotated[
    float | None,
    typer.Option(
        "--silent-after", min=1, metavar="SECONDS", help="An attempt that nobody follows this long is the end."
    ),
]
WaitTimeout = Annotated[
    float | None, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="Give up after this; by default never.")
]


def wait(run: Run, store: StoreUrl = None, silent_after: Silent = 900.0, timeout: WaitTimeout = None) -> None:
    """Wait until a run has ended: exit 0 with its result, 1 where it failed or nobody goes on with it.

    Example: `opdctl wait quickstart --store build/quickstart/store --timeout 3600 && echo done`
    """
    from opdctl.standing import wait_for_end
    from opdctl.targets import find_run

    with deadline(timeout) if timeout is not None else contextlib.nullcontext():
        place = find_run(run, store=store, timeout_s=timeout or DEFAULT_TIMEOUT_S)
        end = wait_for_end(
            place.store,
            silent_s=silent_after,
            on_away=lambda reason: note(f"the store is away, waiting goes on: {reason}"),
        )
    if not end.is_success:
        raise ToolError(
            f"run {place.run_id} failed: {end.reason}", fix=f"`opdctl logs {run} --tail 50` shows its last words"
        )
    note(f"run {place.run_id} succeeded")
