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
from opd.runs import headline
from opd.runs.attempts import DEFAULT_LEASE_TTL_S, ENDED_FILE, OWNER_FILE, attempt_prefix
from opd.runs.headline import (
    LOSS_KEYS,
    STEP_SECONDS_KEYS,
    VALIDATION_PREFIX,
    Score,
    first_of,
    seconds_left,
    total_steps,
)
from opd.runs.identity import RUN_FILE, SPEC_FILE
from opd.runs.metrics import METRICS_FILE, RESERVED_KEYS
from opd.runs.result import FATAL_FILE, RESULT_FILE
from opd.text import inert
from opdctl.redact import one_line, redact, redact_tree
from opdctl.runs.history import read_history, series
from opdctl.runs.listing import Listing

# Numbers that an evaluation may leave out.
_OPTIONAL: dict[str, Any] = {"standard_error": None, "num_dropped": 0}
_EVALUATION = {"num_problems": int, "num_samples": int, "mean": float, "pass_at": list, "maj_at": list}


def checked_spec(spec: Mapping[str, Any] | None, problems: list[str]) -> dict[str, Any]:
    """The spec without secrets; without a `seed` that is no integer and a `trainer` that is no mapping."""
    found: dict[str, Any] = redact_tree(spec or {})
    for name, kind in (("seed", int), ("trainer", dict)):
        if name in found and not _is(found[name], kind):
            problems.append(f"spec.json: {name} = {str(found.pop(name))[:60]!r} is left out: must be {_A[kind]}")
    return found


def checked_result(result: Mapping[str, Any] | None, problems: list[str]) -> dict[str, Any] | None:
    """The result without secrets; its `eval` holds only data sets with all their numbers."""
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
    if len(kept) < len(sets):
        left = ", ".join(sorted(sets.keys() - kept.keys()))
        problems.append(f"result.json: eval of {left} is left out: must hold the numbers {', '.join(_EVALUATION)}")
    return found | ({"eval": kept} if kept else {})


def _numbers(source: str, numbers: Any, problems: list[str]) -> dict[str, Any]:
    """Return a data set's further numbers, those that are whole."""
    found = numbers if isinstance(numbers, dict) else {"": numbers}
    kept = {name: item for name, item in found.items() if _is_number(item)}
    if len(kept) < len(found):
        left = ", ".join(map(repr, sorted(found.keys() - kept.keys())))
        problems.append(f"result.json: of {source} the numbers {left} are left out: must hold mean and num_answers")
    return kept


def _is_number(item: Any) -> bool:
    return (
        isinstance(item, dict)
        and _is(item.get("mean"), float)
        and _is(item.get("num_answers"), int)
        and (item.get("standard_error") is None or _is(item["standard_error"], float))
    )


_A = {int: "an integer", float: "a number", list: "a list of numbers", dict: "an object"}


def _is(value: Any, kind: type) -> bool:
    if isinstance(value, bool):
        return False
    if kind is float and isinstance(value, int):
        return abs(value) <= sys.float_info.max  # JSON's integers have no largest
    return isinstance(value, kind)


def _is_evaluation(values: Any) -> bool:
    return (
        isinstance(values, dict)
        and all(_is(values.get(name), kind) for name, kind in _EVALUATION.items())
        and all(values[name] and all(_is(item, float) for item in values[name]) for name in ("pass_at", "maj_at"))
        and _is(values.get("num_dropped", 0), int)
        and (values.get("standard_error") is None or _is(values["standard_error"], float))
    )


State = Literal["running", "silent", "stopped", "succeeded", "failed", "not started", "unreadable"]


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run as it lay in the store; everything is plain JSON."""

    run_id: str
    url: str
    kind: str
    spec_hash: str
    state: State
    detail: str
    """Why it failed or stopped; empty where all is well."""
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
    """What was skipped or could not be read, a line each."""
    num_skipped_lines: int = 0
    last_sign_s: float = 0.0
    """Unix seconds of the last attempt's newest beat."""
    spec: dict[str, Any] = field(default_factory=dict)
    stage: str = ""
    """Of a pipeline that goes on, the stage that runs and its step, where its summary is believed."""

    @property
    def model(self) -> str:
        """The spec's `model.name`; empty for a conversion, and for specs of other makers."""
        model = self.spec.get("model")
        return str(model.get("name", "")) if isinstance(model, Mapping) else ""

    @property
    def loss(self) -> float | None:
        return first_of(self.latest, LOSS_KEYS)

    @property
    def rollout_score(self) -> Score | None:
        """Of the training answers."""
        return headline.rollout_score(self.latest)

    @property
    def score(self) -> Score | None:
        """Held-out accuracy of the first validation set, else the rollouts' own score."""
        return headline.score(self.latest)

    @property
    def complete_steps(self) -> list[int]:
        return [entry["step"] for entry in self.checkpoints if entry["is_complete"]]

    @property
    def eta_s(self) -> float | None:
        """Seconds to the last step at the last step's pace, for a run whose length the spec fixes."""
        pace_s = first_of(self.latest, STEP_SECONDS_KEYS)
        return seconds_left(self.last_step, self.total_steps, pace_s) if self.state == "running" else None

    @property
    def faults(self) -> list[Finding]:
        """What the trainer's monitor has named and not seen gone."""
        return standing(self.latest)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"faults": [asdict(fault) for fault in self.faults]}


def ended_state(outcome: str, detail: str) -> tuple[State, str]:
    """State and detail of a run without a result whose last attempt ended so, as its ended.json says."""
    return ("failed" if outcome in ("failed", "fatal") else "stopped"), detail or outcome


def told_apart(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Runs of one name from several stores are called by their URL."""
    num = Counter(record.run_id for record in records)
    return [replace(record, run_id=record.url) if num[record.run_id] > 1 else record for record in records]


def read_run(listing: Listing, *, run_id: str) -> tuple[RunRecord, pa.Table]:
    """Reads a run: its record, and its metrics merged over the attempts.

    Raises:
        StoreError: the store is away or refuses.
    """
    problems: list[str] = []
    table, num_skipped = _read_metrics(listing, problems)
    records = {name: _json(listing, name, problems) for name in (RUN_FILE, SPEC_FILE, RESULT_FILE, FATAL_FILE)}
    spec = checked_spec(records[SPEC_FILE], problems)
    result = checked_result(records[RESULT_FILE], problems)
    state, detail = _state(listing, records, problems)
    steps = table["step"].to_numpy()
    record = RunRecord(
        run_id=one_line(run_id),
        url=listing.store.url,
        kind=one_line(str(spec.get("kind", ""))),
        spec_hash=one_line(str((records[RUN_FILE] or {}).get("spec_hash", ""))),
        state=state,
        detail=redact(detail),
        num_attempts=len(listing.attempts()),
        last_step=int(steps[-1]) if len(steps) else None,
        total_steps=total_steps(spec, result),
        latest=_latest(table),
        validation=_validation(table),
        checkpoints=[asdict(info) for info in listing.checkpoints()],
        result=result,
        problems=[redact(problem) for problem in problems],
        num_skipped_lines=num_skipped,
        last_sign_s=listing.last_sign_s(max(listing.attempts(), default=0)),
        spec=spec,
    )
    return record, table


def unreadable(listing: Listing, *, run_id: str, error: Exception) -> tuple[RunRecord, pa.Table]:
    """The record of a run whose files no reader expected: it stands in the table and says so."""
    record = RunRecord(
        run_id=one_line(run_id), url=listing.store.url, kind="", spec_hash="", state="unreadable",
        detail=redact(f"its records cannot be read ({type(error).__name__}: {error})"), num_attempts=len(listing.attempts()),
        last_step=None, total_steps=None, last_sign_s=listing.last_sign_s(max(listing.attempts(), default=0)),
    )  # fmt: skip
    return record, read_history({})[0]


def live_state(record: RunRecord, listing: Listing) -> tuple[State, float]:
    """State and last sign of life as of now: heartbeats are not part of what is cached.

    An attempt that has not ended counts as running while its lease holds, then as silent.
    """
    last_sign_s = listing.last_sign_s(max(listing.attempts(), default=0))
    if record.state not in ("running", "silent"):
        return record.state, last_sign_s
    age_s = time.time() - last_sign_s
    return ("running" if age_s <= DEFAULT_LEASE_TTL_S else "silent"), last_sign_s


def _read_metrics(listing: Listing, problems: list[str]) -> tuple[pa.Table, int]:
    files = {
        attempt: b"".join(listing.store.get(key) for key in listing.parts(attempt, METRICS_FILE))
        for attempt in listing.folders()
    }
    table, reports = read_history(files)
    skipped = [report for report in reports if report.num_corrupt_lines or report.num_half_lines]
    problems += [report.describe() for report in skipped]
    return _shown_names(table), sum(report.num_corrupt_lines + report.num_half_lines for report in skipped)


def _shown_names(table: pa.Table) -> pa.Table:
    """The table with metrics named as a terminal may get them; of two that then have one name the first stays."""
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
    prefix = attempt_prefix(attempts[-1])
    ended = _json(listing, f"{prefix}/{ENDED_FILE}", problems)
    if ended is None:
        return "running", "" if f"{prefix}/{OWNER_FILE}" in listing else "no owner"
    return ended_state(str(ended.get("outcome", "")), str(ended.get("detail", "")))


def _latest(table: pa.Table) -> dict[str, float]:
    """The last value of every metric that was logged."""
    found = {}
    for name in table.column_names:
        if name in RESERVED_KEYS:
            continue
        column = table[name].combine_chunks()
        for row in range(len(column) - 1, -1, -1):  # most metrics are in the last row, validation some rows before
            if column[row].is_valid:
                found[name] = float(column[row].as_py())
                break
    return found


def _validation(table: pa.Table) -> dict[str, list[float]]:
    names = [name for name in table.column_names if name.startswith(VALIDATION_PREFIX) and not name.endswith("stderr")]
    found = {name: series(table, name)[1] for name in names}
    return {name: [float(values[0]), float(values[-1])] for name, values in found.items() if len(values)}
