"""A run's attempts as their records describe them: host, times, progress and end."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

from opd.errors import CorruptRecord
from opd.runs.attempts import ENDED_FILE, HEARTBEAT_FILE, attempt_prefix, read_owner
from opdctl.runs.listing import Listing

STUCK_SHARE = 1 / 3
_MAX_TIME_S = 1e11


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The place of a driver, the seconds without progress there, and the seconds after which it is ended for that."""

    where: str
    silent_s: float
    limit_s: float | None

    @property
    def is_stuck(self) -> bool:
        """True after a third of its watchdog's limit without progress."""
        return self.limit_s is not None and self.silent_s > STUCK_SHARE * self.limit_s


@dataclass(frozen=True, kw_only=True)
class AttemptLine:
    """One attempt; `outcome` is empty until it ends. All times come from its records, never from files."""

    attempt: int
    host: str
    started_at_s: float
    outcome: str
    detail: str
    last_sign_s: float
    progress: Progress | None = None

    @property
    def end(self) -> str:
        """Outcome and detail, such as `failed: ValueError: no such layer`; empty until it ends."""
        return ": ".join(filter(None, (self.outcome, self.detail)))

    @property
    def seconds(self) -> float:
        """Seconds from its claim to its last sign."""
        return max(self.last_sign_s - self.started_at_s, 0.0) if self.started_at_s else 0.0


def attempt_lines(listing: Listing) -> list[AttemptLine]:
    """Return every claimed attempt, ascending."""
    return [attempt_line(listing, attempt) for attempt in listing.attempts()]


def attempt_line(listing: Listing, attempt: int) -> AttemptLine:
    """Read the records of one attempt."""
    owner = read_owner(listing.store, attempt)
    ended = _record(listing, f"{attempt_prefix(attempt)}/{ENDED_FILE}")
    beat = {} if ended else _record(listing, f"{attempt_prefix(attempt)}/{HEARTBEAT_FILE}")
    started_at_s = (seconds(owner.started_at_s) or 0.0) if owner else 0.0
    signs = (seconds(record.get("time_s")) or 0.0 for record in (ended, beat))
    return AttemptLine(
        attempt=attempt,
        host=str(owner.host) if owner else "?",
        started_at_s=started_at_s,
        outcome=str(ended.get("outcome", "")),
        detail=str(ended.get("detail", "")),
        last_sign_s=max(started_at_s, *signs),
        progress=_progress(beat),
    )


def attempt_end(listing: Listing, attempt: int) -> str:
    """Return the end of one attempt in words, such as `attempt 2 ended: failed: ...`."""
    if attempt not in listing.attempts():
        return f"attempt {attempt} was never claimed"
    line = attempt_line(listing, attempt)
    if line.end:
        return f"attempt {attempt} ended: {line.end}"
    return (
        f"attempt {attempt} is running: its last sign of life came {max(time.time() - line.last_sign_s, 0):.0f} s ago"
    )


def _progress(beat: dict[str, Any]) -> Progress | None:
    beaten_s, progress_at_s, step = (seconds(beat.get(name)) for name in ("time_s", "progress_at_s", "step"))
    if beaten_s is None or progress_at_s is None or step is None:
        return None
    return Progress(
        where=": ".join(map(str, filter(None, (beat.get("stage"), f"{beat.get('phase')} at step {step:.0f}")))),
        silent_s=max(time.time() - progress_at_s, 0.0),
        limit_s=seconds(beat.get("limit_s")),
    )


def seconds(value: Any) -> float | None:
    """Return a record's number; None for other values and for numbers that are no time."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value <= _MAX_TIME_S and math.isfinite(value) else None


def _record(listing: Listing, key: str) -> dict[str, Any]:
    try:
        return (listing.store.get_json(key) or {}) if key in listing else {}
    except CorruptRecord as error:
        return {"outcome": "unreadable", "detail": str(error)}
