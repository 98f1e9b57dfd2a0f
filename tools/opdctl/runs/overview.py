"""Runs of a namespace and of a store in one table, each by its RayJob, its summary or its record."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

from opd.errors import CorruptRecord
from opd.runs.attempts import OWNER_FILE, attempt_prefix
from opd.runs.headline import Score
from opd.runs.summary import FINISHED, SUMMARY_FILE, Summary
from opdctl.kube.client import GROUPS, RUN_LABEL, KubeApi
from opdctl.kube.notice import Notice
from opdctl.kube.rayjob import JobState, read_job
from opdctl.kube.waiting import pod_lines
from opdctl.redact import one_line, redact
from opdctl.runs.layout import Cell, Sheet
from opdctl.runs.record import RunRecord, State, ended_state, told_apart
from opdctl.runs.tables import STYLES, duration, number, score_text
from opdctl.runs.targets import NUM_THREADS, RunPlace
from opdctl.runs.threads import Away, in_threads

# What goes first on a narrow screen is last here.
COLUMNS = ("run", "phase", "step", "ETA", "score", "age", "GPUs", "kind")
WIDE = ("namespace", "try", "loss", "checkpoint", "store")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run; None and empty texts stand for what neither side says."""

    run: str
    phase: str
    namespace: str = ""
    kind: str = ""
    step: int | None = None
    total_steps: int | None = None
    stage: str = ""
    """The stage of a pipeline that runs, and its step; `step` is the number of its finished stages."""
    eta_s: float | None = None
    score: Score | None = None
    """Held-out accuracy of the first validation set, else the rollouts' own score."""
    age_s: float | None = None
    """Since the run was made in the cluster; of one that is only in the store, since its last sign of life."""
    gpus: int = 0
    attempts: int = 0
    loss: float | None = None
    checkpoint: int | None = None
    store: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values; `score` as its value, beside `score_is_share`."""
        value, is_share = self.score or (None, None)
        return asdict(self) | {"score": value, "score_is_share": is_share}


def live_runs(api: KubeApi, *, everywhere: bool, selector: str) -> list[tuple[str, JobState, int]]:
    """Namespace, RayJob and GPUs held of every run in the namespace, or in all of them.

    Args:
        selector: further labels, `key=value,...`.

    Raises:
        ClusterError: the API server does not answer, or refuses.
    """
    wanted = ",".join(filter(None, (RUN_LABEL, selector)))
    jobs = f"{GROUPS['rayjobs']}/rayjobs" if everywhere else api.path("rayjobs")
    pods = api.list("/api/v1/pods" if everywhere else api.path("pods"), selector=wanted)
    held: dict[tuple[str, str], int] = {}
    for tree, line in ((tree, pod_lines([tree], [])[0]) for tree in pods):
        key = (tree["metadata"].get("namespace", api.namespace), tree["metadata"]["labels"][RUN_LABEL])
        held[key] = held.get(key, 0) + (line.num_gpus if line.is_there else 0)
    found = []
    for tree in api.list(jobs, selector=wanted):
        namespace = tree["metadata"].get("namespace", api.namespace)
        found.append((namespace, read_job(tree), held.get((namespace, tree["metadata"]["name"]), 0)))
    return found


def rows(
    jobs: Iterable[tuple[str, JobState, int]],
    records: Iterable[RunRecord],
    notices: Mapping[tuple[str, str], Notice] | None = None,
) -> list[Row]:
    """One row a run: those with a RayJob first, then those of the store alone; each part by name.

    Args:
        notices: by namespace and run, what runs say of themselves; it counts where no record does.
    """
    by_name = {record.run_id: record for record in records}
    out = []
    for namespace, job, gpus in sorted(jobs, key=lambda item: (item[0], item[1].name)):
        record = by_name.pop(job.name, None)
        age_s = max(time.time() - job.created_s, 0.0) if job.created_s else None
        known = {
            "run": job.name,
            "phase": job.phase,
            "namespace": namespace,
            "kind": job.kind,
            "gpus": gpus,
            "age_s": age_s,
        }
        notice = (notices or {}).get((namespace, job.name))
        out.append(_noticed(notice, **known) if record is None and notice is not None else _row(record, **known))
    for name, record in by_name.items():
        age_s = max(time.time() - record.last_sign_s, 0.0) if record.last_sign_s else None
        out.append(_row(record, run=name, phase=record.state, kind=record.kind, age_s=age_s))
    return out


def _noticed(notice: Notice, **known: Any) -> Row:
    return Row(
        **known,
        step=notice.step,
        total_steps=notice.total_steps,
        stage=f"{notice.stage}, step {notice.step}" if notice.stage else "",
        eta_s=notice.eta_s if known["phase"] == "running" else None,
        score=notice.score,
        attempts=notice.attempt or 0,
        loss=notice.loss,
    )


def _row(record: RunRecord | None, **known: Any) -> Row:
    if record is None:
        return Row(**known)
    return Row(
        **known,
        step=record.last_step,
        total_steps=record.total_steps,
        stage=record.stage,
        eta_s=record.eta_s,
        score=record.score,
        attempts=record.num_attempts,
        loss=record.loss,
        checkpoint=record.complete_steps[-1] if record.complete_steps else None,
        store=redact(record.url),
    )


def table(found: Sequence[Row], *, is_wide: bool) -> Sheet:
    """The rows; columns that have no room go, the last ones first."""
    names = [*COLUMNS, *(WIDE if is_wide else ())]
    lines = [[cells[name] for name in names] for cells in map(_cells, found)]
    return Sheet(names=names, lines=lines, is_overview=True)


def _cells(row: Row) -> dict[str, Cell]:
    total = f"/{row.total_steps}" if row.total_steps else ""
    return {
        "run": one_line(row.run),
        "phase": Text(row.phase, style=STYLES.get(row.phase, "")),
        "step": one_line(row.stage) or ("–" if row.step is None else f"{row.step}{total}"),
        "ETA": "–" if row.eta_s is None else duration(row.eta_s),
        "score": score_text(row.score),
        "age": "–" if row.age_s is None else duration(row.age_s),
        "GPUs": str(row.gpus or "–"),
        "namespace": row.namespace or "–",
        "kind": row.kind or "–",
        "try": str(row.attempts or "–"),
        "loss": number(row.loss),
        "checkpoint": "–" if row.checkpoint is None else str(row.checkpoint),
        "store": row.store or "–",
    }


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
        return by_summary(place) if believes_summaries else None

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
