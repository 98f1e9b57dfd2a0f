"""How far a run's driver is, in memory that its supervisor shares: the phase, the last progress in it, and how long is too long.

The driver notes each phase it enters and each sign of progress within one. How long a phase may go without is learnt from
the phase itself: `factor` medians of its longest silences so far, but never less than `floor_s`. The supervisor reads what
was noted last, so it needs no answer of a process that hangs or is stopped.
"""

from __future__ import annotations

import json
import math
import mmap
import statistics
import struct
import time
from collections import defaultdict
from dataclasses import asdict, dataclass

_NUM_BYTES = 4096
_HEADER = struct.Struct("=QI")  # a count that is odd while the rest is being written, and the length of what follows
# A phase that was never seen may compile, load or fill caches.
FIRST_FLOORS = 4.0
_NUM_REMEMBERED = 50
_NUM_LOOKS = 1000


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What the driver noted last. Times are seconds of `time.monotonic`, which all processes of a machine share."""

    phase: str
    step: int
    progress_at_s: float
    limit_s: float | None
    """More silence than this is a stall; None: this phase may take as long as it takes."""
    folder: str = ""
    """Where the attempt's files lie."""
    stage: str = ""
    """Of a pipeline, `distil (2 of 3)`: phase and step are its run's."""

    def silent_s(self) -> float:
        """Seconds since the last progress."""
        return max(time.monotonic() - self.progress_at_s, 0.0)

    @property
    def is_stalled(self) -> bool:
        return self.limit_s is not None and self.silent_s() > self.limit_s


class Progress:
    """Written by the driver's main thread, read by anybody who was forked from the same process."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, _NUM_BYTES)
        self._count = 0
        self._floor_s, self._factor, self._folder = math.inf, 1.0, ""
        self._phase, self._step, self._at_s = "", 0, 0.0
        self._stage = ""
        self._longest_s = 0.0
        self._silences: dict[str, list[float]] = defaultdict(list)

    def watch(self, *, folder: str, floor_s: float, factor: float) -> None:
        """From now on silence may be a stall; `floor_s` 0 never makes it one."""
        self._folder, self._floor_s, self._factor = folder, floor_s or math.inf, factor

    def within(self, stage: str) -> None:
        """From now on what is noted is of this stage of a pipeline."""
        self._stage = stage

    def enter(self, phase: str, step: int) -> None:
        """A phase begins, which is progress too; the one before has taken as long as it has."""
        self._mark()
        if self._phase:
            self._silences[self._phase] = [*self._silences[self._phase], self._longest_s][-_NUM_REMEMBERED:]
        self._phase, self._step, self._longest_s = phase, step, 0.0
        self._write(self._limit_s())

    def tick(self) -> None:
        """Something of the phase is done."""
        self._mark()
        self._write(self._limit_s())

    def rest(self, phase: str) -> None:
        """What follows waits for others for as long as they take."""
        self.enter(phase, self._step)
        self._write(None)

    def read(self) -> Standing | None:
        """What was noted last; None before anything was, and of a writer that was killed while it noted something."""
        for _ in range(_NUM_LOOKS):
            count, length = _HEADER.unpack_from(self._shared)
            data = self._shared[_HEADER.size : _HEADER.size + length]
            if not count % 2 and count == _HEADER.unpack_from(self._shared)[0]:
                return Standing(**json.loads(data)) if length else None
            time.sleep(0.001)
        return None

    def _mark(self) -> None:
        now_s = time.monotonic()
        if self._phase:
            self._longest_s = max(self._longest_s, now_s - self._at_s)
        self._at_s = now_s

    def _limit_s(self) -> float | None:
        known = self._silences[self._phase]
        limit_s = max(self._floor_s, self._factor * statistics.median(known)) if known else FIRST_FLOORS * self._floor_s
        return limit_s if math.isfinite(limit_s) else None

    def _write(self, limit_s: float | None) -> None:
        standing = Standing(
            phase=self._phase,
            step=self._step,
            progress_at_s=self._at_s,
            limit_s=limit_s,
            folder=self._folder,
            stage=self._stage,
        )
        data = json.dumps(asdict(standing)).encode()[: _NUM_BYTES - _HEADER.size]
        self._count += 1 + self._count % 2  # odd, also where an exception ended the call before
        _HEADER.pack_into(self._shared, 0, self._count, 0)
        self._shared[_HEADER.size : _HEADER.size + len(data)] = data
        self._count += 1
        _HEADER.pack_into(self._shared, 0, self._count, len(data))


PROGRESS = Progress()
"""This process's, shared with what it forks."""
