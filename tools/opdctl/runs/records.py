"""Reads one run's record from the store: its state, progress, checkpoints and results."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from opd.errors import CorruptRecord
from opd.runs.attempts import DEFAULT_LEASE_TTL_S, ENDED_FILE, OWNER_FILE, attempt_prefix
from opd.runs.headline import VALIDATION_PREFIX, total_steps
from opd.runs.identity import RUN_FILE, SPEC_FILE
from opd.runs.metrics import METRICS_FILE, RESERVED_KEYS
from opd.runs.result import FATAL_FILE, RESULT_FILE
from opd.text import inert
from opdctl.redact import one_line, redact
from opdctl.runs.history import read_history, series
from opdctl.runs.listing import Listing
from opdctl.runs.record import RunRecord, State, ended_state
from opdctl.runs.wellformed import checked_result, checked_spec


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
