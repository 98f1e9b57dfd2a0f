"""Where the seconds before a run's first step go, part by part."""

from __future__ import annotations

import time

PREFIX = "timing_start/"
"""Of the metrics that the first step's row has of them."""


class StartTimes:
    """Notes the end of each part of a start; times are seconds since this module was first imported."""

    def __init__(self) -> None:
        self._last_s = self._began_s = time.monotonic()
        self._parts: dict[str, float] = {}
        self._is_taken = False

    def mark(self, part: str) -> None:
        """`part`, which began where the one before it ended, has ended; after `take` there is nothing to note."""
        if self._is_taken:
            return
        now_s = time.monotonic()
        self._parts[part] = self._parts.get(part, 0.0) + now_s - self._last_s
        self._last_s = now_s

    def take(self) -> dict[str, float]:
        """Seconds of each part in order, and of all; nothing from the second call on."""
        if self._is_taken:
            return {}
        self._is_taken = True
        return self._parts | {"all": self._last_s - self._began_s}


def as_metrics(parts: dict[str, float]) -> dict[str, float]:
    """`worker processes` -> `timing_start/worker_processes_s`."""
    return {f"{PREFIX}{name.replace(' ', '_')}_s": seconds for name, seconds in parts.items()}


def table(parts: dict[str, float]) -> list[str]:
    """A line a part, for the driver's log."""
    return [f"start: {name:24s} {seconds:7.1f} s" for name, seconds in parts.items()]


START = StartTimes()
"""This process's, and that of the child that it forks for the run."""
