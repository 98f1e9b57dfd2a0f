"""A run directory as one listing of its store shows it, and its attempts as their records describe them."""

import math
import time
from dataclasses import dataclass
from typing import Any

from opd.errors import CorruptRecord
from opd.runs import attempts as claims
from opd.runs.manifest import CHECKPOINTS_FOLDER, COMPLETE_FILE, step_folder, step_of
from opd.runs.stream import part_key
from opd.store.base import ObjectInfo, Store
from opdctl.tables import duration

STUCK_SHARE = 1 / 3
_MAX_TIME_S = 1e11
_MAX_DETAIL_CHARS = 4000  # of an attempt's reason: a model's output can be in it


@dataclass(frozen=True, kw_only=True)
class AttemptLine:
    """One attempt; `outcome` is empty until it ends, `progress` empty after. All times come from its records."""

    attempt: int
    host: str
    started_at_s: float
    outcome: str
    detail: str
    last_sign_s: float
    progress: str = ""

    @property
    def end(self) -> str:
        """Outcome and detail, such as `failed: ValueError: no such layer`; empty until it ends."""
        return ": ".join(filter(None, (self.outcome, self.detail)))

    @property
    def is_alive(self) -> bool:
        """True while its lease holds."""
        return not self.outcome and abs(time.time() - self.last_sign_s) <= claims.LEASE_TTL_S


class Listing:
    """The objects of one run by key."""

    def __init__(self, store: Store):
        self.store = store
        self.objects: dict[str, ObjectInfo] = {info.key: info for info in store.list("")}

    def __contains__(self, key: str) -> bool:
        return key in self.objects

    def attempts(self) -> list[int]:
        """Return the numbers of the attempts that were claimed, ascending."""
        return [number for number in self.folders() if f"{claims.attempt_prefix(number)}/{claims.OWNER_FILE}" in self]

    def folders(self) -> list[int]:
        """Return the numbers of all attempt folders, ascending: metrics count without a readable claim, too."""
        names = {key.split("/")[1] for key in self.objects if key.startswith(f"{claims.ATTEMPTS_FOLDER}/")}
        return sorted(number for name in names if (number := claims.attempt_of(name)) is not None)

    def parts(self, attempt: int, name: str) -> list[str]:
        """Return the stored parts of one attempt's streamed file, in order."""
        first = f"{claims.attempt_prefix(attempt)}/{name}"
        parts: list[str] = []
        while (key := part_key(first, len(parts))) in self:
            parts.append(key)
        return parts

    def checkpoints(self) -> list[dict[str, Any]]:
        """Return every step with a folder, ascending: number of files, bytes, and whether it is sealed."""
        found: dict[int, list[ObjectInfo]] = {}
        for key, info in self.objects.items():
            if key.startswith(f"{CHECKPOINTS_FOLDER}/") and (step := step_of(key.split("/")[1])) is not None:
                found.setdefault(step, []).append(info)
        return [
            {"step": step, "num_files": len(files), "num_bytes": sum(info.size for info in files),
             "is_complete": f"{step_folder(step)}/{COMPLETE_FILE}" in self}
            for step, files in sorted(found.items())
        ]  # fmt: skip

    def attempt_lines(self) -> list[AttemptLine]:
        return [self.attempt_line(attempt) for attempt in self.attempts()]

    def newest(self) -> AttemptLine | None:
        """Return the attempt that owns the run; None before the first."""
        attempts = self.attempts()
        return self.attempt_line(attempts[-1]) if attempts else None

    def attempt_line(self, attempt: int) -> AttemptLine:
        """Read the records of one attempt."""
        owner = claims.read_owner(self.store, attempt)
        ended = self._record(f"{claims.attempt_prefix(attempt)}/{claims.ENDED_FILE}")
        beat = {} if ended else self._record(f"{claims.attempt_prefix(attempt)}/{claims.HEARTBEAT_FILE}")
        started_at_s = _seconds(owner.started_at_s) if owner else 0.0
        return AttemptLine(
            attempt=attempt,
            host=str(owner.host) if owner else "?",
            started_at_s=started_at_s,
            outcome=str(ended.get("outcome", "")),
            detail=str(ended.get("detail", ""))[:_MAX_DETAIL_CHARS],
            last_sign_s=max(started_at_s, _seconds(ended.get("time_s")), _seconds(beat.get("time_s"))),
            progress=_progress(beat),
        )

    def _record(self, key: str) -> dict[str, Any]:
        try:
            return (self.store.get_json(key) or {}) if key in self else {}
        except CorruptRecord as error:
            return {"outcome": "unreadable", "detail": str(error)}


def _progress(beat: dict[str, Any]) -> str:
    """Return `rollout at step 7, 12 s ago`, or how long there has been no progress."""
    progress_at_s, limit_s, step = (_seconds(beat.get(name)) for name in ("progress_at_s", "limit_s", "step"))
    if not progress_at_s:
        return ""
    where = ": ".join(map(str, filter(None, (beat.get("stage"), f"{beat.get('phase')} at step {step:.0f}"))))
    silent_s = max(time.time() - progress_at_s, 0.0)
    if limit_s and silent_s > STUCK_SHARE * limit_s:
        return f"no progress for {duration(silent_s)} ({where}); ended after {duration(limit_s)}"
    return f"{where}, {duration(silent_s)} ago"


def _seconds(value: Any) -> float:
    """Return a record's number; 0 for other values and for numbers that are no time."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value <= _MAX_TIME_S and math.isfinite(value) else 0.0
