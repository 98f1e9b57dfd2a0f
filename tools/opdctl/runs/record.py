"""One run as its store holds it: its record, read and checked from the run's files."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import pyarrow as pa

from opd.errors import CorruptRecord
from opd.monitor.monitor import Finding, standing
from opd.redaction import one_line, redact, redact_tree
from opd.runs.attempts import DEFAULT_LEASE_TTL_S, ENDED_FILE, attempt_prefix
from opd.runs.headline import (
    LOSS_KEYS,
    STEP_SECONDS_KEYS,
    VALIDATION_PREFIX,
    Score,
    first_of,
    rollout_score,
    seconds_left,
    total_steps,
)
from opd.runs.identity import RUN_FILE, SPEC_FILE
from opd.runs.metrics import METRICS_FILE, RESERVED_KEYS
from opd.runs.result import FATAL_FILE, RESULT_FILE
from opd.runs.summary import FINISHED
from opd.text import inert
from opdctl.runs.attempts import attempt_line
from opdctl.runs.listing import Listing
from opdctl.runs.metrics import read_metrics, series

State = Literal["running", "silent", "stopped", "succeeded", "failed", "not started", "unreadable"]


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run as it was in the store; all fields are plain JSON."""

    run_id: str
    url: str
    kind: str
    spec_hash: str
    state: State
    detail: str
    """The reason of a failure or stop."""
    num_attempts: int
    last_step: int | None
    total_steps: int | None
    latest: dict[str, float] = field(default_factory=dict)
    """The last value of every metric."""
    validation: dict[str, list[float]] = field(default_factory=dict)
    """First and last value of each validation's core metric."""
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] | None = None
    problems: list[str] = field(default_factory=list)
    """One line for each thing that was skipped or could not be read."""
    num_skipped_lines: int = 0
    last_sign_s: float = 0.0
    """Unix seconds of the last attempt's newest record."""
    spec: dict[str, Any] = field(default_factory=dict)
    stage: str = ""
    """A running pipeline's stage and its step."""

    @property
    def model(self) -> str:
        """The spec's `model.name`; empty without one."""
        model = self.spec.get("model")
        return str(model.get("name", "")) if isinstance(model, Mapping) else ""

    @property
    def loss(self) -> float | None:
        return first_of(self.latest, LOSS_KEYS)

    @property
    def training_score(self) -> Score | None:
        """Accuracy of the training answers, or their scorer's mean."""
        return rollout_score(self.latest)

    @property
    def validation_accuracy(self) -> float | None:
        """Last held-out accuracy of the first validation set."""
        name = min(filter(is_validation_accuracy, self.latest), default=None)
        return None if name is None else self.latest[name]

    @property
    def complete_steps(self) -> list[int]:
        return [entry["step"] for entry in self.checkpoints if entry["is_complete"]]

    @property
    def eta_s(self) -> float | None:
        """Seconds to the last step at the last step's pace; None for a run that has ended or has no fixed length."""
        pace_s = first_of(self.latest, STEP_SECONDS_KEYS)
        return seconds_left(self.last_step, self.total_steps, pace_s) if self.state == "running" else None

    @property
    def faults(self) -> list[Finding]:
        """The faults that the trainer's monitor reported and has not seen end."""
        return standing(self.latest)

    def to_json(self) -> dict[str, Any]:
        """Return the fields and the derived numbers as plain values."""
        faults = [asdict(fault) for fault in self.faults]
        return asdict(self) | {"loss": self.loss, "eta_s": self.eta_s, "faults": faults} | accuracies(self)


def accuracies(record: RunRecord) -> dict[str, Any]:
    """Return the validation's accuracy, the training's accuracy and the training's score as plain values."""
    score = record.training_score
    return {
        "validation_accuracy": record.validation_accuracy,
        "training_accuracy": score.value if score and score.is_share else None,
        "training_score": score.value if score else None,
    }


def is_validation(name: str) -> bool:
    """Return whether a metric is a validation's core score."""
    return name.startswith(VALIDATION_PREFIX) and not name.endswith("stderr")


def is_validation_accuracy(name: str) -> bool:
    """Return whether a metric is a validation's accuracy."""
    return is_validation(name) and "/acc/mean@" in name


def ended_state(outcome: str, detail: str) -> tuple[State, str]:
    """Return state and detail of a run whose last attempt ended with this outcome."""
    if outcome == FINISHED:
        return "succeeded", ""
    return ("failed" if outcome in ("failed", "fatal") else "stopped"), detail or outcome


def told_apart(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Name runs that share a name by their URL."""
    num = Counter(record.run_id for record in records)
    return [replace(record, run_id=record.url) if num[record.run_id] > 1 else record for record in records]


def read_run(listing: Listing, *, run_id: str) -> tuple[RunRecord, pa.Table]:
    """Read a run: its record, and its metrics merged over the attempts.

    Raises:
        StoreError: the store is unreachable or rejects the request.
    """
    problems: list[str] = []
    table, num_skipped = _read_metrics(listing, problems)
    records = {name: _json(listing, name, problems) for name in (RUN_FILE, SPEC_FILE, RESULT_FILE, FATAL_FILE)}
    spec = checked_spec(records[SPEC_FILE], problems)
    result = checked_result(records[RESULT_FILE], problems)
    state, detail = _state(listing, records, problems)
    steps = table["step"].to_numpy()
    attempts = listing.attempts()
    record = RunRecord(
        run_id=one_line(run_id),
        url=listing.store.url,
        kind=one_line(str(spec.get("kind", ""))),
        spec_hash=one_line(str((records[RUN_FILE] or {}).get("spec_hash", ""))),
        state=state,
        detail=redact(detail),
        num_attempts=len(attempts),
        last_step=int(steps[-1]) if len(steps) else None,
        total_steps=total_steps(spec, result),
        latest=_latest(table),
        validation=_validation(table),
        checkpoints=[asdict(info) for info in listing.checkpoints()],
        result=result,
        problems=[redact(problem) for problem in problems],
        num_skipped_lines=num_skipped,
        last_sign_s=attempt_line(listing, attempts[-1]).last_sign_s if attempts else 0.0,
        spec=spec,
    )
    return record, table


def unreadable(listing: Listing, *, run_id: str, error: Exception) -> tuple[RunRecord, pa.Table]:
    """Return the record of a run whose files no reader expected, so that the table shows it."""
    record = RunRecord(
        run_id=one_line(run_id),
        url=listing.store.url,
        kind="",
        spec_hash="",
        state="unreadable",
        detail=redact(f"its records cannot be read ({type(error).__name__}: {error})"),
        num_attempts=len(listing.attempts()),
        last_step=None,
        total_steps=None,
    )
    return record, read_metrics({})[0]


def as_of_now(record: RunRecord, listing: Listing) -> RunRecord:
    """Return the record with its state and last sign by the newest heartbeat, which no cache holds.

    An attempt without an end is running while its lease holds, then silent.
    """
    if record.state not in ("running", "silent") or not listing.attempts():
        return record
    last_sign_s = attempt_line(listing, listing.attempts()[-1]).last_sign_s
    is_alive = abs(time.time() - last_sign_s) <= DEFAULT_LEASE_TTL_S
    return replace(record, state="running" if is_alive else "silent", last_sign_s=last_sign_s)


def _read_metrics(listing: Listing, problems: list[str]) -> tuple[pa.Table, int]:
    files = {
        attempt: b"".join(listing.store.get(key) for key in listing.parts(attempt, METRICS_FILE))
        for attempt in listing.folders()
    }
    table, reports = read_metrics(files)
    skipped = [report for report in reports if report.num_corrupt_lines or report.num_half_lines]
    problems += [report.describe() for report in skipped]
    return _shown_names(table), sum(report.num_corrupt_lines + report.num_half_lines for report in skipped)


def _shown_names(table: pa.Table) -> pa.Table:
    """Name metrics as a terminal may show them; of two equal names the first remains."""
    names = {inert(name, keep=""): name for name in reversed(table.column_names) if name != "run_id"}
    kept = list(reversed(names.items()))
    return table.select([name for _, name in kept]).rename_columns([shown for shown, _ in kept])


def _json(listing: Listing, key: str, problems: list[str]) -> dict[str, Any] | None:
    if key not in listing:
        return None
    try:
        return listing.store.get_json(key)
    except CorruptRecord as error:
        problems.append(str(error))
        return None


def _state(listing: Listing, records: Mapping[str, Any], problems: list[str]) -> tuple[State, str]:
    if RESULT_FILE in listing:
        return "succeeded", ""
    if FATAL_FILE in listing:
        return "failed", str((records[FATAL_FILE] or {}).get("reason", f"{FATAL_FILE} cannot be read"))
    attempts = listing.attempts()
    if not attempts:
        return "not started", ""
    ended = _json(listing, f"{attempt_prefix(attempts[-1])}/{ENDED_FILE}", problems)
    if ended is None:
        return "running", ""
    return ended_state(str(ended.get("outcome", "")), str(ended.get("detail", "")))


def _latest(table: pa.Table) -> dict[str, float]:
    """Return the last value of every metric."""
    found = {}
    for name in table.column_names:
        if name in RESERVED_KEYS:
            continue
        column = table[name].combine_chunks()
        for row in range(len(column) - 1, -1, -1):  # most metrics are in the last row, validations some rows before
            if column[row].is_valid:
                found[name] = float(column[row].as_py())
                break
    return found


def _validation(table: pa.Table) -> dict[str, list[float]]:
    found = {name: series(table, name)[1] for name in filter(is_validation, table.column_names)}
    return {name: [float(values[0]), float(values[-1])] for name, values in found.items() if len(values)}


# Checks of the records, which any writer into the store may have written.
_A = {int: "an integer", dict: "an object"}
_OPTIONAL: dict[str, Any] = {"standard_error": None, "num_dropped": 0}
_EVALUATION = {"num_problems": int, "num_samples": int, "mean": float, "pass_at": list, "maj_at": list}


def checked_spec(spec: Mapping[str, Any] | None, problems: list[str]) -> dict[str, Any]:
    """Return the spec without secrets; without a `seed` that is no integer and a `trainer` that is no mapping."""
    found: dict[str, Any] = redact_tree(spec or {})
    for name, kind in (("seed", int), ("trainer", dict)):
        if name in found and not _is(found[name], kind):
            problems.append(f"spec.json: {name} = {str(found.pop(name))[:60]!r} is left out: must be {_A[kind]}")
    return found


def checked_result(result: Mapping[str, Any] | None, problems: list[str]) -> dict[str, Any] | None:
    """Return the result without secrets; its `eval` holds only data sets with all their numbers."""
    if result is None:
        return None
    found: dict[str, Any] = redact_tree(result)
    sets = found.pop("eval", {})
    if not isinstance(sets, dict):
        problems.append(f"result.json: eval is left out: must be an object, not {type(sets).__name__}")
        return found
    kept = {
        name: _OPTIONAL | values | {"numbers": _numbers(name, values.get("numbers", {}), problems)}
        for name, values in sets.items()
        if _is_evaluation(values)
    }
    if left := ", ".join(sorted(sets.keys() - kept.keys())):
        problems.append(f"result.json: eval of {left} is left out: must hold the numbers {', '.join(_EVALUATION)}")
    return found | ({"eval": kept} if kept else {})


def _numbers(source: str, numbers: Any, problems: list[str]) -> dict[str, Any]:
    """Return a data set's further numbers that are complete."""
    found = numbers if isinstance(numbers, dict) else {"": numbers}
    kept = {name: item for name, item in found.items() if _is_number(item)}
    if left := ", ".join(map(repr, sorted(found.keys() - kept.keys()))):
        problems.append(f"result.json: of {source} the numbers {left} are left out: must hold mean and num_answers")
    return kept


def _is(value: Any, kind: type) -> bool:
    if isinstance(value, bool):
        return False
    if kind is float and isinstance(value, int):
        return abs(value) <= sys.float_info.max  # JSON's integers have no largest
    return isinstance(value, kind)


def _has_error(item: Mapping[str, Any]) -> bool:
    return item.get("standard_error") is None or _is(item["standard_error"], float)


def _is_number(item: Any) -> bool:
    return (
        isinstance(item, dict)
        and _is(item.get("mean"), float)
        and _is(item.get("num_answers"), int)
        and _has_error(item)
    )


def _is_evaluation(values: Any) -> bool:
    return (
        isinstance(values, dict)
        and all(_is(values.get(name), kind) for name, kind in _EVALUATION.items())
        and all(values[name] and all(_is(item, float) for item in values[name]) for name in ("pass_at", "maj_at"))
        and _is(values.get("num_dropped", 0), int)
        and _has_error(values)
    )
