"""summary.json: the content of a list's line, so that a list of many runs reads one small object of each.

It repeats the run directory's other files, and decides nothing. The newest attempt writes it with each beat and once more
at its end. A killed attempt leaves it as it was, so a reader believes it only if it records an end or is younger than a
lease. It believes an attempt's end only if no later attempt has begun. Else the reader reads the other files.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from opd.errors import CorruptRecord
from opd.runs.attempts import DEFAULT_LEASE_TTL_S
from opd.runs.headline import MAX_STEP, is_headline, total_steps
from opd.runs.metrics import NON_FINITE, as_number
from opd.runs.progress import Standing
from opd.store.base import Store

SUMMARY_FILE = "summary.json"
FINISHED = "finished"
"""The outcome of a run that has its result.json."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The state of a run after its newest attempt."""

    attempt: int
    kind: str
    outcome: str
    """The attempt's end, as in its ended.json; empty before the end."""
    detail: str
    time_s: float
    """The time of this record, Unix seconds of the writer's clock."""
    last_step: int | None
    """The highest step with a row of metrics."""
    total_steps: int | None
    latest: dict[str, float]
    """The last value of each metric of the headline."""
    checkpoint: int | None
    """The newest sealed step."""
    stage: str = ""
    """The stage of a running pipeline and its step: `distil (2 of 3), step 7`."""

    @property
    def is_current(self) -> bool:
        """True for an end, and for a record younger than a lease by both clocks."""
        return bool(self.outcome) or abs(time.time() - self.time_s) <= DEFAULT_LEASE_TTL_S

    @property
    def may_go_on(self) -> bool:
        """True for an attempt's end after which another attempt may have begun."""
        return self.outcome not in ("", FINISHED)

    def to_json(self) -> dict[str, Any]:
        """Return the record, with numbers that JSON lacks as in metrics.jsonl, and without an empty stage."""
        record = asdict(self) | {"latest": {name: as_number(value) for name, value in self.latest.items()}}
        return {name: value for name, value in record.items() if name != "stage" or value}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Read the output of `to_json`; raise CorruptRecord for any other content."""
        try:
            found = cls(**{**record, "latest": {name: _float(value) for name, value in record["latest"].items()}})
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise CorruptRecord(f"{SUMMARY_FILE} is no summary: {error!r}") from error
        steps = [found.attempt, *(n for n in (found.last_step, found.total_steps, found.checkpoint) if n is not None)]
        texts = (found.kind, found.outcome, found.detail, found.stage)
        are_steps = all(type(step) is int and 0 <= step <= MAX_STEP for step in steps)
        if not are_steps or type(found.time_s) is not float or not all(type(text) is str for text in texts):
            raise CorruptRecord(f"{SUMMARY_FILE} is no summary: {str(record)[:200]}")
        return found


class SummaryKeeper:
    """The writer of a run's summary.

    Args:
        store: the store that other programs read.
        newest_checkpoint: returns the newest sealed step in `store`.
        check: raises Overtaken where another claim owns the run.
    """

    def __init__(
        self,
        store: Store,
        *,
        attempt: int,
        spec: Mapping[str, Any],
        newest_checkpoint: Callable[[], int | None],
        check: Callable[[], None],
    ):
        self._store, self._attempt, self._spec = store, attempt, spec
        self._newest_checkpoint, self._check = newest_checkpoint, check
        self._knows_earlier = attempt == 1
        self._last_step: int | None = None
        self._latest: dict[str, float] = {}
        self._lock = threading.Lock()

    def see(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Take note of a row of metrics."""
        values = {name: as_number(value) for name, value in metrics.items() if is_headline(name)}
        with self._lock:
            self._last_step = max(step, self._last_step or 0)
            self._latest |= {name: _float(value) for name, value in values.items() if value is not None}

    def write(self, standing: Standing | None) -> None:
        """Write the state of the living attempt.

        Raises:
            Overtaken: another attempt owns the run and its summary.
            StoreError: the store is unreachable; a later call tries again.
        """
        is_stage = standing is not None and standing.stage and self._spec.get("kind") == "pipeline"
        self._put("", "", None, f"{standing.stage}, step {standing.step}" if standing and is_stage else "")

    def end(self, outcome: str, detail: str = "", *, result: Mapping[str, Any] | None = None) -> None:
        """Write the attempt's end; `result` is a finished run's. Raises as `write`."""
        self._put(outcome, detail, result, "")

    def _put(self, outcome: str, detail: str, result: Mapping[str, Any] | None, stage: str) -> None:
        if not self._knows_earlier:
            self._take_earlier()
        checkpoint = self._newest_checkpoint()
        self._check()  # right before the write: this process may have been paused for long
        with self._lock:
            last_step, latest = self._last_step, dict(self._latest)
        summary = Summary(
            attempt=self._attempt,
            kind=str(self._spec.get("kind", "")),
            outcome=outcome,
            detail=detail,
            time_s=time.time(),
            last_step=last_step,
            total_steps=total_steps(self._spec, result),
            latest=latest,
            checkpoint=checkpoint,
            stage=stage,
        )
        self._store.put_json(SUMMARY_FILE, summary.to_json())

    def _take_earlier(self) -> None:
        """Take over the values that the attempt before left in the store."""
        try:
            earlier = Summary.from_json(self._store.get_json(SUMMARY_FILE) or {})
        except CorruptRecord:  # or none
            earlier = None
        self._knows_earlier = True
        if earlier is not None:
            with self._lock:
                self._latest = {**earlier.latest, **self._latest}
                steps = [step for step in (earlier.last_step, self._last_step) if step is not None]
                self._last_step = max(steps, default=None)


def _float(value: Any) -> float:
    return NON_FINITE[value] if isinstance(value, str) else float(value)
