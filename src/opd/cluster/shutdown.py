"""An orderly end at SIGTERM (eviction, uninstall, Ctrl-C): the run finishes its step, saves, and ends."""

import contextlib
import os
import signal
from types import FrameType
from typing import Any


class GracefulStop:
    """A context of the main thread in which the first SIGTERM only sets `requested`; a second one acts as before.

    A save within a signal handler would catch weights mid-update: the trainer asks between steps.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: Any = None

    def __enter__(self) -> "GracefulStop":
        self._before = signal.signal(signal.SIGTERM, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, self._before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        signal.signal(signal.SIGTERM, self._before)
        with contextlib.suppress(OSError):  # Python rejects a print within the main thread's own print
            os.write(1, b"asked to end: finishing this step, then saving\n")
