"""Seconds before a run's first step, part by part."""

import time

PREFIX = "timing_start/"


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
        """Print a line for each part and for all, and return their metrics (`PREFIX`); empty from the second call on."""
        if self._parts is None:
            return {}
        parts, self._parts = self._parts | {"all": self._last_s - self._began_s}, None
        for name, seconds in parts.items():
            print(f"start: {name:24s} {seconds:7.1f} s", flush=True)
        return {f"{PREFIX}{name.replace(' ', '_')}_s": seconds for name, seconds in parts.items()}


START = StartTimes()  # the start of this process and of its fork for the run
