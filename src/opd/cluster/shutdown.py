"""A run that is asked to end (eviction, uninstall, Ctrl-C) finishes its step, saves, and ends."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class GracefulStop:
    """While entered, the first SIGTERM only sets `requested`; a second one acts as it would have before.

    Ending at once would throw the step away, and saving from inside a signal handler would catch weights mid-update:
    the trainer asks between steps. Only the main thread can install handlers; elsewhere this does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: Any = None

    def __enter__(self) -> GracefulStop:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._restore()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self._restore()
        # Not print: where the signal comes within the main thread's own print, Python refuses another.
        with contextlib.suppress(OSError):
            os.write(1, b"asked to end: finishing this step, then saving\n")

    def _restore(self) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
            self._before = None
