"""How many runs stand, for a list: each by its summary, one small object; read whole where that cannot be believed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from opd.errors import CorruptRecord
from opd.runs.attempts import OWNER_FILE, attempt_prefix
from opd.runs.summary import FINISHED, SUMMARY_FILE, Summary
from opdctl.redact import one_line, redact
from opdctl.runs.away import Away
from opdctl.runs.cache import RunCache
from opdctl.runs.record import RunRecord, State, ended_state, told_apart
from opdctl.runs.targets import NUM_THREADS, RunPlace
from opdctl.runs.threads import in_threads


def standings(
    places: Sequence[RunPlace],
    *,
    folder: Path,
    believes_summaries: bool = True,
    on_done: Callable[[], None] = lambda: None,
    away: Away | None = None,
) -> list[RunRecord]:
    """The record of every run that has started, in the order of `places`, with what a list shows of it.

    Args:
        folder: of the cache, for runs that are read whole.
        believes_summaries: otherwise all are read whole.
        away: leaves out what a store does not tell.

    Raises:
        StoreError: the first failure, without `away`; the others are not waited for.
    """

    def look(place: RunPlace) -> RunRecord | None:
        is_worth_it = believes_summaries and not RunCache(folder, place.store.url).lacks_summary
        return by_summary(place) if is_worth_it else None

    looked = in_threads(away.around(look) if away else look, places, num_threads=NUM_THREADS)
    others = []
    for place, record in zip(places, looked, strict=True):
        if record is None:
            others.append(place)
        else:
            on_done()
    found = {record.url: record for record in looked if record is not None}
    if others:
        from opdctl.runs.gather import gather

        found |= {run.record.url: run.record for run in gather(others, folder=folder, on_done=on_done, away=away)}
    return told_apart([found[place.store.url] for place in places if place.store.url in found])


def by_summary(place: RunPlace) -> RunRecord | None:
    """The run as its summary tells it; None where there is none, or none to be believed."""
    try:
        summary = Summary.from_json(place.store.get_json(SUMMARY_FILE) or {})
    except CorruptRecord:
        return None
    if not summary.is_current or (summary.may_go_on and place.store.exists(_next_owner(summary))):
        return None
    state, detail = _state(summary)
    return RunRecord(
        run_id=one_line(place.run_id),
        url=place.store.url,
        kind=one_line(summary.kind),
        spec_hash="",
        state=state,
        detail=redact(detail),
        num_attempts=summary.attempt,
        last_step=summary.last_step,
        total_steps=summary.total_steps,
        latest=summary.latest,
        checkpoints=[] if summary.checkpoint is None else [{"step": summary.checkpoint, "is_complete": True}],
        last_sign_s=summary.time_s,
        stage=one_line(summary.stage),
    )


def _next_owner(summary: Summary) -> str:
    return f"{attempt_prefix(summary.attempt + 1)}/{OWNER_FILE}"


def _state(summary: Summary) -> tuple[State, str]:
    if not summary.outcome:
        return "running", ""
    if summary.outcome == FINISHED:
        return "succeeded", ""
    return ended_state(summary.outcome, summary.detail)
