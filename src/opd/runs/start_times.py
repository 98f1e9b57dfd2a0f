"""Seconds before a run's first step, part by part."""

from __future__ import annotations

import time

PREFIX = "timing_start/"
"""Prefix of these metrics in the first step's row."""


class StartTimes:
    """The end of each part of a start, in seconds since the first import of this module."""

    def __init__(self) -> None:
        self._last_s = self._began_s = time.monotonic()
        self._parts: dict[str, float] | None = {}

    def mark(self, part: str) -> None:
        """Note the end of `part`, which began at the last note; after `take` nothing is noted."""
        if self._parts is not None:
            now_s = time.monotonic()
            self._parts[part] = self._parts.get(part, 0.0) + now_s - self._last_s
            self._last_s = now_s

    def take(self) -> dict[str, float]:
        """Return seconds of each part in order, and of all; empty from the second call on."""
        parts, self._parts = self._parts, None
        return {} if parts is None else parts | {"all": self._last_s - self._began_s}


def as_metrics(parts: dict[str, float]) -> dict[str, float]:
    """Return metrics: `worker processes` is `timing_start/worker_processes_s`."""
    return {f"{PREFIX}{name.replace(' ', '_')}_s": seconds for name, seconds in parts.items()}


def table(parts: dict[str, float]) -> list[str]:
    """Return a line for each part, for the driver's log."""
    return [f"start: {name:24s} {seconds:7.1f} s" for name, seconds in parts.items()]


START = StartTimes()
"""The start of this process and of its fork for the run."""
