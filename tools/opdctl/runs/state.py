"""Says how a run is doing right now: reads the store once, every attempt's outcome, and whether the run is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opd.errors import CorruptRecord, StoreUnavailable
from opd.runs.attempts import ENDED_FILE, HEARTBEAT_FILE, attempt_prefix, read_owner
from opd.runs.result import FATAL_FILE, RESULT_FILE
from opd.store.base import Store
from opdctl.runs.listing import Listing

POLL_S = 5.0
STUCK_SHARE = 1 / 3


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a driver is: `rollout at step 7`, of a pipeline `distil (2 of 3): rollout at step 7`; how long it has made no progress
    there, and when it is ended for that."""

    where: str
    silent_s: float
    limit_s: float | None

    @property
    def is_stuck(self) -> bool:
        """Silent for a good part of what its watchdog allows."""
        return self.limit_s is not None and self.silent_s > STUCK_SHARE * self.limit_s


@dataclass(frozen=True, kw_only=True)
class AttemptLine:
    """One attempt: who ran it, from when, and how it ended (`outcome` empty while it has not)."""

    attempt: int
    host: str
    started_at_s: float
    outcome: str
    detail: str
    last_sign_s: float
    progress: Progress | None = None
    """Of an attempt that goes on, as its newest beat tells it."""

    @property
    def end(self) -> str:
        """`failed: ValueError: no such layer`; empty while it has not ended."""
        return ": ".join(filter(None, (self.outcome, self.detail)))


def attempt_lines(listing: Listing) -> list[AttemptLine]:
    """Every claimed attempt, ascending."""
    return [_attempt_line(listing, attempt) for attempt in listing.attempts()]


def _attempt_line(listing: Listing, attempt: int) -> AttemptLine:
    owner = read_owner(listing.store, attempt)
    ended = _record(listing, f"{attempt_prefix(attempt)}/{ENDED_FILE}")
    return AttemptLine(
        attempt=attempt,
        host=str(owner.process.host) if owner else "?",
        started_at_s=(_number(owner.started_at_s) or 0.0) if owner else 0.0,
        outcome=str(ended.get("outcome", "")),
        detail=str(ended.get("detail", "")),
        last_sign_s=listing.last_sign_s(attempt),
        progress=None if ended else _progress(listing, attempt),
    )


def _progress(listing: Listing, attempt: int) -> Progress | None:
    beat = _record(listing, f"{attempt_prefix(attempt)}/{HEARTBEAT_FILE}")
    beaten_s, progress_at_s, step = (_number(beat.get(name)) for name in ("time_s", "progress_at_s", "step"))
    if beaten_s is None or progress_at_s is None or step is None:
        return None  # before the first phase
    since_beat_s = max(time.time() - listing.last_sign_s(attempt), 0.0)
    return Progress(
        where=": ".join(filter(None, (beat.get("stage"), f"{beat.get('phase')} at step {step:.0f}"))),
        silent_s=max(beaten_s - progress_at_s, 0.0) + since_beat_s,
        limit_s=_number(beat.get("limit_s")),
    )


def _number(value: Any) -> float | None:
    """None for what is no number, or one that no float can hold."""
    try:
        return float(value) if isinstance(value, int | float) else None
    except OverflowError:
        return None


def _record(listing: Listing, key: str) -> dict[str, Any]:
    try:
        return (listing.store.get_json(key) or {}) if key in listing else {}
    except CorruptRecord as error:
        return {"outcome": "unreadable", "detail": str(error)}


def attempt_end(listing: Listing, attempt: int) -> str:
    """How one attempt ended: `attempt 2 ended: failed: ...`, or that it goes on."""
    if attempt not in listing.attempts():
        return f"attempt {attempt} was never claimed"
    line = _attempt_line(listing, attempt)
    if line.end:
        return f"attempt {attempt} ended: {line.end}"
    return f"attempt {attempt} goes on: its last sign of life came {max(time.time() - line.last_sign_s, 0):.0f} s ago"


@dataclass(frozen=True, kw_only=True)
class End:
    """How a run ended: well, or for good with a reason."""

    is_success: bool
    reason: str
    is_gone: bool = False
    """Whether it is no end, but the RayJob's disappearance."""


def wait_for_end(
    store: Store,
    *,
    silent_s: float | None,
    on_away: Callable[[str], None],
    on_ended: Callable[[str], None] = lambda text: None,
    poll_s: float = POLL_S,
) -> End:
    """Waits until the run has its result, or an end that no retry can mend.

    Args:
        silent_s: an ended or silent attempt that nobody follows for this long counts as the end; None waits for ever.
        on_away: told once when the store goes away; waiting goes on.
        on_ended: told once of each attempt that has ended and may be followed; waiting goes on.
    """
    is_away, told = False, 0
    while True:
        try:
            end, last = _end(store, silent_s)
            if end is not None:
                return end
            if last is not None and last.end and last.attempt != told:
                told = last.attempt
                left = "" if silent_s is None else f"{max(silent_s - (time.time() - last.last_sign_s), 0):.0f} s "
                on_ended(f"attempt {last.attempt} {last.end}; waiting {left}for another")
            is_away = False
        except StoreUnavailable as error:
            if not is_away:
                on_away(str(error))
            is_away = True
        time.sleep(poll_s)


def _end(store: Store, silent_s: float | None) -> tuple[End | None, AttemptLine | None]:
    """The run's end; where there is none yet, its newest attempt."""
    listing = Listing(store)
    if RESULT_FILE in listing:
        return End(is_success=True, reason=""), None
    if FATAL_FILE in listing:
        return End(is_success=False, reason=str((store.get_json(FATAL_FILE) or {}).get("reason", ""))), None
    last = next(reversed(attempt_lines(listing)), None)
    if last is None:
        return None, None
    age_s = time.time() - last.last_sign_s
    if silent_s is None or age_s < silent_s:
        return None, last
    how = f"ended ({last.outcome}): {last.detail}" if last.outcome else "gave no sign of life"
    return End(is_success=False, reason=f"attempt {last.attempt} {how}, and nobody followed for {age_s:.0f} s"), None
