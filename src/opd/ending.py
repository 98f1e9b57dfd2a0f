"""Ends of a run that are no errors: it is done, it was asked to stop, or it was saved for pods that are gone."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray

from opd.cluster import lost
from opd.errors import EXIT_INTERRUPTED, NodeLost
from opd.pods import stop
from opd.runs.progress import PROGRESS
from opd.runs.run import Run


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The end of a run without an error, from which `opd.trainer.entry.run` makes the end of the process.

    Attributes:
        exit_code: of the process.
        result: what `result.json` holds of a run that is done. None means that a later attempt continues it.
    """

    exit_code: int = 0
    result: dict[str, Any] | None = None


STOPPED = Ending(exit_code=EXIT_INTERRUPTED)


def serve_pods(run: Run, save: Callable[[], int | None], *, is_over: Callable[[], bool]) -> Ending | None:
    """Save when pods are being evicted, then wait until they are gone.

    Args:
        save: saves and uploads; returns the step that is safe. None means that there is none.
        is_over: returns True once the run ends by itself, which ends the hold.

    Returns:
        An ending if a node of the run is gone with the pods. None means that the run continues.
    """
    gone: dict[str, str] = {}

    def save_and_hand_over() -> int | None:
        step = save()
        PROGRESS.rest("pods")
        run.hand_over()
        return step

    def is_lost_or_over() -> bool:
        with contextlib.suppress(ray.exceptions.RayError, OSError):  # where the head goes, Ray goes first
            gone.update(lost.lost_parts(only_with_nodes=True))
        return bool(gone) or is_over()

    PROGRESS.rest("pods")
    were_asked = stop.serve(run.asked_in, save_and_hand_over, is_over=is_lost_or_over)
    if gone:  # nothing here waits for them, as a step would
        error = NodeLost(sorted(gone.values()))
        print(f"the pods go: {error}", flush=True)
        return Ending(exit_code=error.exit_code)
    if were_asked:
        run.hand_over(back=True)
    return None
