"""Runs of a namespace and of a store in one table, each by its RayJob, its summary or its record."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from opd.errors import CorruptRecord
from opd.redaction import one_line, redact
from opd.runs.attempts import OWNER_FILE, attempt_prefix
from opd.runs.summary import SUMMARY_FILE, Summary
from opdctl.kube.client import GROUPS, RUN_LABEL, KubeApi
from opdctl.kube.rayjob import JobState, read_job
from opdctl.kube.waiting import pod_lines
from opdctl.runs.gather import Unreachable, gather, in_threads
from opdctl.runs.places import RunPlace
from opdctl.runs.record import RunRecord, accuracies, ended_state, told_apart
from opdctl.runs.tables import NONE, Cell, Sheet, duration, number, percent, state_text

# Each thread waits for one small answer.
NUM_THREADS = 16
# A narrow screen leaves out the last columns.
COLUMNS = ("run", "phase", "step", "ETA", "val acc", "train acc", "age", "GPUs", "kind")
WIDE = ("namespace", "try", "loss", "checkpoint", "store")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run; None and empty texts mean that neither side knows.

    Attributes:
        step: of a pipeline the number of its finished stages; `stage` has the running stage and its step.
        age_s: since the run was made in the cluster; of a run in the store alone since its last sign of life.
    """

    run: str
    phase: str
    namespace: str = ""
    kind: str = ""
    step: int | None = None
    total_steps: int | None = None
    stage: str = ""
    eta_s: float | None = None
    validation_accuracy: float | None = None
    training_accuracy: float | None = None
    training_score: float | None = None
    age_s: float | None = None
    gpus: int = 0
    attempts: int = 0
    loss: float | None = None
    checkpoint: int | None = None
    store: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def cells(self) -> dict[str, Cell]:
        """Return the cell of each column."""
        total = f"/{self.total_steps}" if self.total_steps else ""
        training = (
            number(self.training_score) if self.training_accuracy is None else f"{percent(self.training_accuracy)} %"
        )
        return {
            "run": one_line(self.run),
            "phase": state_text(self.phase),
            "step": one_line(self.stage) or (NONE if self.step is None else f"{self.step}{total}"),
            "ETA": NONE if self.eta_s is None else duration(self.eta_s),
            "val acc": NONE if self.validation_accuracy is None else f"{percent(self.validation_accuracy)} %",
            "train acc": training,
            "age": NONE if self.age_s is None else duration(self.age_s),
            "GPUs": str(self.gpus or NONE),
            "namespace": self.namespace or NONE,
            "kind": self.kind or NONE,
            "try": str(self.attempts or NONE),
            "loss": number(self.loss),
            "checkpoint": NONE if self.checkpoint is None else str(self.checkpoint),
            "store": self.store or NONE,
        }


def table(found: Sequence[Row], *, is_wide: bool) -> Sheet:
    """Return the rows as a table."""
    names = [*COLUMNS, *(WIDE if is_wide else ())]
    lines = [[cells[name] for name in names] for cells in (row.cells() for row in found)]
    return Sheet(names=names, lines=lines, is_overview=True)


def live_runs(api: KubeApi, *, everywhere: bool, selector: str) -> list[tuple[str, JobState, int]]:
    """Return namespace, RayJob and number of GPUs of every run in the namespace or in all namespaces.

    Args:
        selector: further labels, `key=value,...`.

    Raises:
        ClusterError: the API server does not answer, or rejects a request.
    """
    wanted = ",".join(filter(None, (RUN_LABEL, selector)))
    jobs = f"{GROUPS['rayjobs']}/rayjobs" if everywhere else api.path("rayjobs")
    held: dict[tuple[str, str], int] = {}
    for tree in api.list("/api/v1/pods" if everywhere else api.path("pods"), selector=wanted):
        [line] = pod_lines([tree], [])
        key = (tree["metadata"].get("namespace", api.namespace), tree["metadata"]["labels"][RUN_LABEL])
        held[key] = held.get(key, 0) + (line.num_gpus if line.is_there else 0)
    found = []
    for tree in api.list(jobs, selector=wanted):
        namespace = tree["metadata"].get("namespace", api.namespace)
        found.append((namespace, read_job(tree), held.get((namespace, tree["metadata"]["name"]), 0)))
    return found


def rows(jobs: Iterable[tuple[str, JobState, int]], records: Iterable[RunRecord]) -> list[Row]:
    """Return one row a run: runs with a RayJob first, then runs of the store alone; each part by name."""
    by_name = {record.run_id: record for record in records}
    out = []
    for namespace, job, gpus in sorted(jobs, key=lambda item: (item[0], item[1].name)):
        facts = {"phase": job.phase, "namespace": namespace, "kind": job.kind, "gpus": gpus}
        out.append(_row(by_name.pop(job.name, None), run=job.name, since_s=job.created_s, **facts))
    for name, record in by_name.items():
        out.append(_row(record, run=name, phase=record.state, kind=record.kind, since_s=record.last_sign_s))
    return out


def _row(record: RunRecord | None, *, since_s: float, **known: Any) -> Row:
    known["age_s"] = max(time.time() - since_s, 0.0) if since_s else None
    if record is None:
        return Row(**known)
    return Row(
        **known,
        **accuracies(record),
        step=record.last_step,
        total_steps=record.total_steps,
        stage=record.stage,
        eta_s=record.eta_s,
        attempts=record.num_attempts,
        loss=record.loss,
        checkpoint=record.complete_steps[-1] if record.complete_steps else None,
        store=redact(record.url),
    )


def standings(
    places: Sequence[RunPlace],
    *,
    folder: Path,
    believes_summaries: bool = True,
    on_done: Callable[[], None] = lambda: None,
    unreachable: Unreachable | None = None,
) -> list[RunRecord]:
    """Return the record of every run that has started, in the order of `places`, as far as a list shows it.

    Args:
        folder: the cache, for runs that are read whole.
        believes_summaries: otherwise all runs are read whole.
        unreachable: leaves out the runs whose store does not answer.

    Raises:
        StoreError: the first failure, without `unreachable`.
    """

    def read(place: RunPlace) -> RunRecord | None:
        return by_summary(place) if believes_summaries else None

    around = unreachable.around(read) if unreachable else read
    found: dict[str, RunRecord] = {}
    for record in in_threads(around, places, num_threads=NUM_THREADS):
        if record is not None:
            found[record.url] = record
            on_done()
    if others := [place for place in places if place.store.url not in found]:
        read_whole = gather(others, folder=folder, on_done=on_done, unreachable=unreachable)
        found |= {run.record.url: run.record for run in read_whole}
    return told_apart([found[place.store.url] for place in places if place.store.url in found])


def by_summary(place: RunPlace) -> RunRecord | None:
    """Return the run by its summary; None without a summary that is current."""
    try:
        summary = Summary.from_json(place.store.get_json(SUMMARY_FILE) or {})
    except CorruptRecord:
        return None
    next_owner = f"{attempt_prefix(summary.attempt + 1)}/{OWNER_FILE}"
    if not summary.is_current or (summary.may_go_on and place.store.exists(next_owner)):
        return None
    state, detail = ended_state(summary.outcome, summary.detail) if summary.outcome else ("running", "")
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
