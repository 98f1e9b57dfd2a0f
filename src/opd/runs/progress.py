"""A driver's progress in memory shared with its supervisor: phase, last progress, limit of silence.

The driver notes each phase and each progress within a phase. A phase's limit is `factor` medians of its longest silences
so far, at least `floor_s`. The supervisor reads the last note without an answer of the driver, which may hang.
"""

import json
import math
import mmap
import statistics
import struct
import time
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Any

_SLOT_BYTES = 8192
_COUNT = struct.Struct("=Q")  # of notes; note number N is in slot N % 2
# A new phase may compile, load or fill caches.
FIRST_FLOORS = 4.0
_NUM_REMEMBERED = 50


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The driver's last note. Times are seconds of `time.monotonic`, which all processes of a machine share."""

    phase: str
    step: int
    progress_at_s: float
    limit_s: float | None  # more silence than this is a stall; None means no limit
    folder: str = ""  # the attempt's folder
    stage: str = ""  # the pipeline's stage, `distil (2 of 3)`; phase and step belong to its run

    def silent_s(self) -> float:
        """Return seconds since the last progress."""
        return max(time.monotonic() - self.progress_at_s, 0.0)

    @property
    def is_stalled(self) -> bool:
        return self.limit_s is not None and self.silent_s() > self.limit_s

    def as_beat(self) -> dict[str, Any]:
        """Return the note as the lease's record holds it, with Unix seconds."""
        beat = {"phase": self.phase, "step": self.step, "limit_s": self.limit_s, "stage": self.stage}
        return beat | {"progress_at_s": time.time() - self.silent_s()}


class Progress:
    """Notes of the driver's main thread, for readers that were forked from the same process."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, _COUNT.size + 2 * _SLOT_BYTES)
        self._floor_s, self._factor, self._folder, self._stage = math.inf, 1.0, "", ""
        self._phase, self._step, self._at_s, self._longest_s = "", 0, 0.0, 0.0
        self._silences: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_NUM_REMEMBERED))

    def watch(self, *, folder: str, floor_s: float, factor: float) -> None:
        """Make silence a stall from now on; with `floor_s` 0 it never is."""
        self._folder, self._floor_s, self._factor = folder, floor_s or math.inf, factor

    def within(self, stage: str) -> None:
        """Set the pipeline's stage of later notes."""
        self._stage = stage

    def enter(self, phase: str, step: int) -> None:
        """Begin a phase, which is progress too."""
        self._mark()
        if self._phase:
            self._silences[self._phase].append(self._longest_s)
        self._phase, self._step, self._longest_s = phase, step, 0.0
        self._note()

    def tick(self) -> None:
        """Note progress within the phase."""
        self._mark()
        self._note()

    def rest(self, phase: str) -> None:
        """Begin a phase that waits for others without a limit."""
        self.enter(phase, self._step)
        self._note(is_limited=False)

    def read(self) -> Standing | None:
        """Return the last note, None before the first."""
        while True:
            count = _COUNT.unpack_from(self._shared)
            start = _COUNT.size + count[0] % 2 * _SLOT_BYTES
            data = self._shared[start : start + _SLOT_BYTES].rstrip(b"\0")
            if _COUNT.unpack_from(self._shared) == count:  # at most the other slot has changed meanwhile
                return Standing(**json.loads(data)) if data else None

    def _mark(self) -> None:
        now_s = time.monotonic()
        if self._phase:
            self._longest_s = max(self._longest_s, now_s - self._at_s)
        self._at_s = now_s

    def _note(self, *, is_limited: bool = True) -> None:
        """Write the slot that no reader reads, then the count: a kill in between leaves the note before."""
        known = self._silences[self._phase]
        limit_s = max(self._floor_s, self._factor * statistics.median(known)) if known else FIRST_FLOORS * self._floor_s
        note = {"phase": self._phase, "step": self._step, "progress_at_s": self._at_s, "folder": self._folder,
                "stage": self._stage, "limit_s": limit_s if is_limited and math.isfinite(limit_s) else None}  # fmt: skip
        count = _COUNT.unpack_from(self._shared)[0] + 1
        start = _COUNT.size + count % 2 * _SLOT_BYTES
        self._shared[start : start + _SLOT_BYTES] = json.dumps(note).encode().ljust(_SLOT_BYTES, b"\0")
        _COUNT.pack_into(self._shared, 0, count)


PROGRESS = Progress()  # this process's progress, shared with its forks
