"""summary.json: a run's line in a list, one small object that repeats the run directory's other files.

The newest attempt writes it with each beat and at its end. A reader believes an end if no later attempt has begun,
and another record while it is younger than a lease. Else it reads the other files.
"""

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError

from opd.errors import CorruptRecord, StoreError
from opd.runs import headline
from opd.runs.attempts import LEASE_TTL_S, Claim
from opd.runs.headline import first_of
from opd.runs.manifest import newest_complete
from opd.runs.metrics import as_float, as_number
from opd.runs.progress import PROGRESS

logger = logging.getLogger(__name__)
Tell = Callable[[Mapping[str, float | None]], None]
SUMMARY_FILE = "summary.json"
FINISHED = "finished"  # the outcome of a run that has its result.json
Step = Annotated[int, Field(ge=0, le=headline.MAX_STEP)]


class Summary(BaseModel):
    """The state of a run after its newest attempt."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    attempt: Step
    kind: str
    outcome: str  # as in ended.json; empty before the end
    detail: str
    time_s: float  # of this record, Unix seconds of the writer's clock
    last_step: Step | None  # the highest with a row of metrics
    total_steps: Step | None
    latest: dict[str, Annotated[float, BeforeValidator(as_float), PlainSerializer(as_number)]]  # of the headline
    checkpoint: Step | None  # the newest sealed step
    stage: str = ""  # of a running pipeline: `distil (2 of 3), step 7`

    @property
    def is_current(self) -> bool:
        """True for an end, and for a record younger than a lease by both clocks."""
        return bool(self.outcome) or abs(time.time() - self.time_s) <= LEASE_TTL_S

    @property
    def may_go_on(self) -> bool:
        """True for an attempt's end after which another attempt may have begun."""
        return self.outcome not in ("", FINISHED)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Read the output of `model_dump`; raise CorruptRecord for any other content."""
        try:
            return cls.model_validate(record)
        except (ValidationError, ArithmeticError, LookupError, TypeError) as error:
            raise CorruptRecord(f"{SUMMARY_FILE} is no summary: {error!r}") from error


class SummaryKeeper:
    """The writer of a run's summary in the store that others read, and of the values that Prometheus gets."""

    def __init__(self, claim: Claim, spec: Mapping[str, Any]):
        self.total_steps = headline.total_steps(spec, None)
        self._claim, self._attempt, self._kind = claim, claim.owner.attempt, str(spec.get("kind", ""))
        self._last_step: int | None = None
        self._num_skipped = 0
        self._latest: dict[str, float] = {}
        self._tell: Tell | None = None
        with contextlib.suppress(CorruptRecord, StoreError):  # the summary of an earlier attempt
            earlier = Summary.from_json(claim.stores[0].get_json(SUMMARY_FILE) or {})
            self._last_step, self._latest = earlier.last_step, dict(earlier.latest)

    def see(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Take note of a row of metrics."""
        values = {name: as_number(value) for name, value in metrics.items() if headline.is_headline(name)}
        skipped = as_number(first_of(metrics, headline.SKIPPED_KEYS))
        self._last_step = max(step, self._last_step or 0)
        self._num_skipped += int(skipped) if isinstance(skipped, int | float) else 0
        # A new mapping, for the thread of the beats reads the last one.
        self._latest = self._latest | {name: as_float(value) for name, value in values.items() if value is not None}

    @contextlib.contextmanager
    def telling(self, tell: Tell) -> Iterator[None]:
        """Let each beat call `tell` with the run's values while the block runs, and call it once at the end."""
        self._tell = tell
        try:
            yield
        finally:
            self.tell()
            self._tell = None

    def tell(self) -> None:
        """Give the present values to the receiver of `telling`; its error ends the telling and not the run."""
        tell = self._tell
        try:
            if tell is not None:
                tell(self._values())
        except Exception as error:  # noqa: BLE001 - the run does not depend on a receiver
            logger.warning("the run continues without %s: %s", tell, error)
            self._tell = None

    def _values(self) -> dict[str, float | None]:
        """Return the values by the names of `opd.trainer.tracking.GAUGES`; None means not known."""
        standing = PROGRESS.read()
        latest, step = {name: value for name, value in self._latest.items() if math.isfinite(value)}, self._last_step
        found, step_s = headline.score(latest), first_of(latest, headline.STEP_SECONDS_KEYS)
        return {
            "opd_attempt": self._attempt,
            "opd_step": step,
            "opd_total_steps": self.total_steps,
            "opd_eta_seconds": headline.seconds_left(step, self.total_steps, step_s),
            "opd_step_seconds": step_s,
            "opd_tokens_per_second": first_of(latest, headline.THROUGHPUT_KEYS),
            "opd_score": None if found is None else found.value,
            "opd_loss": first_of(latest, headline.LOSS_KEYS),
            "opd_progress_time_seconds": time.time() - standing.silent_s() if standing else None,
            "opd_progress_limit_seconds": (standing and standing.limit_s) or 0.0,
            "opd_skipped_updates": self._num_skipped,
        }

    def write(self, outcome: str = "", detail: str = "", *, result: Mapping[str, Any] | None = None) -> None:
        """Write the state of the living attempt, or its end; `result` is a finished run's. Raises Overtaken, StoreError."""
        standing = PROGRESS.read() if self._kind == "pipeline" and not outcome else None
        stage = f"{standing.stage}, step {standing.step}" if standing and standing.stage else ""
        total_steps = self.total_steps if self.total_steps is not None else headline.total_steps({}, result)
        store = self._claim.stores[0]
        checkpoint = next(newest_complete(store), None)
        self._claim.check()  # right before the write: this process may have been paused for long
        summary = Summary(
            attempt=self._attempt, kind=self._kind, outcome=outcome, detail=detail, time_s=time.time(), stage=stage,
            last_step=self._last_step, total_steps=total_steps, latest=self._latest, checkpoint=checkpoint,
        )  # fmt: skip
        store.put_json(SUMMARY_FILE, summary.model_dump())
