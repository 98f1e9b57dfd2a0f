"""summary.json: the little that a list shows of a run, so that who lists many runs reads one small object of each.

All of it follows from the run directory's other files, and nothing is decided by it. The newest attempt writes it while it
lives and once more at its end; one that is killed leaves it as it was. So a reader believes it only where it tells of an end
or is younger than a lease, and of an end that is not the run's only where no later attempt has begun. Where it is not to be
believed, or is not there, the other files are read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from opd.errors import CorruptRecord
from opd.runs.attempts import BEATS_PER_LEASE, DEFAULT_LEASE_TTL_S
from opd.runs.headline import MAX_STEP, is_headline, total_steps
from opd.runs.metrics import NON_FINITE, Row, as_number
from opd.runs.reporter import Snapshot
from opd.store.base import Store

SUMMARY_FILE = "summary.json"
FINISHED = "finished"
"""The outcome of a run that has its result.json."""
# As often as the lease is renewed.
INTERVAL_S = DEFAULT_LEASE_TTL_S / BEATS_PER_LEASE


@dataclass(frozen=True, kw_only=True)
class Summary:
    """How a run stands after its newest attempt."""

    attempt: int
    kind: str
    outcome: str
    """How the attempt ended, as its ended.json says; empty while it goes on."""
    detail: str
    time_s: float
    """When this was written, Unix seconds of the writer's clock."""
    last_step: int | None
    """The highest step with a row of metrics."""
    total_steps: int | None
    latest: dict[str, float]
    """Of each metric of the headline the value at the highest step that has one."""
    checkpoint: int | None
    """The newest sealed step."""
    stage: str = ""
    """Of a pipeline that goes on, the stage that runs and its step: `distil (2 of 3), step 7`."""

    @property
    def is_current(self) -> bool:
        """Whether it says how the run stands now: it tells of an end, or is younger than a lease by both clocks."""
        return bool(self.outcome) or abs(time.time() - self.time_s) <= DEFAULT_LEASE_TTL_S

    @property
    def may_go_on(self) -> bool:
        """Whether it tells of an attempt's end after which another attempt may have begun."""
        return self.outcome not in ("", FINISHED)

    def to_json(self) -> dict[str, Any]:
        """With numbers that JSON lacks as metrics.jsonl writes them, and without a stage where there is none."""
        record = asdict(self) | {"latest": {name: as_number(value) for name, value in self.latest.items()}}
        return {name: value for name, value in record.items() if name != "stage" or value}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """What `to_json` gave.

        Raises:
            CorruptRecord: it is something else.
        """
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
    """What a run has logged, and the file that says so; a `reporter.Tell` while the attempt lives.

    Args:
        store: where others read the run.
        history: the rows of all attempts so far.
        newest_checkpoint: the newest sealed step in `store`.
        check: raises Overtaken where the run is another attempt's by now.
    """

    def __init__(
        self,
        store: Store,
        *,
        attempt: int,
        spec: Mapping[str, Any],
        history: Callable[[], Sequence[Row]],
        newest_checkpoint: Callable[[], int | None],
        check: Callable[[], None],
    ):
        self._store, self._attempt, self._spec = store, attempt, spec
        self._history, self._newest_checkpoint, self._check = history, newest_checkpoint, check
        self._knows_history = attempt == 1
        self._last_step: int | None = None
        self._latest: dict[str, tuple[int, float]] = {}
        self._lock = threading.Lock()
        self._has_ended = False

    def __str__(self) -> str:
        return SUMMARY_FILE

    def see(self, step: int, metrics: Mapping[str, Any], *, is_earlier: bool = False) -> None:
        """Take note of a row of metrics.

        Args:
            is_earlier: of an earlier attempt, whose values give way to this one's of the same step.
        """
        values = {name: as_number(value) for name, value in metrics.items() if is_headline(name)}
        with self._lock:
            self._last_step = max(step, self._last_step or 0)
            for name, value in values.items():
                known = self._latest[name][0] if name in self._latest else -1
                if value is not None and (step > known or (step == known and not is_earlier)):
                    self._latest[name] = (step, _float(value))

    def __call__(self, snapshot: Snapshot) -> None:
        """Write how the run stands; its end is for `end` to tell.

        Raises:
            Overtaken: the run is another attempt's by now, and so is its summary.
            StoreError: the store is away; a later call tries again.
        """
        if not self._has_ended and not snapshot.is_over:
            is_told = snapshot.stage and self._spec.get("kind") == "pipeline"
            self._write("", "", None, stage=f"{snapshot.stage}, step {snapshot.stage_step}" if is_told else "")

    def end(self, outcome: str, detail: str = "", *, result: Mapping[str, Any] | None = None) -> None:
        """Write how the attempt ended; a write that was on its way may come later, and is not believed for long.

        Args:
            result: of a run that is done.

        Raises:
            Overtaken: the run is another attempt's by now, and so is its summary.
            StoreError: the store is away; what it has is not believed for long.
        """
        self._has_ended = True
        self._write(outcome, detail, result)

    def _write(self, outcome: str, detail: str, result: Mapping[str, Any] | None, stage: str = "") -> None:
        if not self._knows_history:
            for row in self._history():
                self.see(row["step"], row, is_earlier=True)
            self._knows_history = True
        checkpoint = self._newest_checkpoint()
        self._check()  # right before the write: this process may have stood still for long
        with self._lock:
            last_step, latest = self._last_step, {name: value for name, (_, value) in self._latest.items()}
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


def _float(value: Any) -> float:
    return NON_FINITE[value] if isinstance(value, str) else float(value)
