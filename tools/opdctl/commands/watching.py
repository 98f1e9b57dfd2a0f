"""Output of a command that looks at runs: once, or again and again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, TypeVar

import typer

from opdctl.console import deadline, note, stdout

WATCH_S = 10.0
Found = TypeVar("Found")
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Show it again every ten seconds, until Ctrl-C.")]


def look_and_show(
    look: Callable[[], Found], show: Callable[[Found], None], *, is_watching: bool, timeout_s: float
) -> None:
    """Look and show; with `is_watching` again on a cleared screen, also while cluster or store are unreachable.

    Args:
        timeout_s: limit of one look.

    Raises:
        CommandTimeout: the first look took longer. Errors of the first look pass through, too.
    """
    from opd.errors import StoreUnavailable
    from opdctl.kube.errors import ClusterUnreachable

    with deadline(timeout_s):
        found = look()
    show(found)
    while is_watching:
        time.sleep(WATCH_S)
        try:
            with deadline(timeout_s):
                found = look()
        except (ClusterUnreachable, StoreUnavailable) as error:
            note(f"looking again: {error}")
            continue
        if (console := stdout()).is_interactive:
            console.clear()
        show(found)
