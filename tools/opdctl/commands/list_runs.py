"""`opdctl list`: the runs of a namespace and of a store in one table, each by its RayJob, its summary or its record."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from opdctl.console import EXIT_USAGE, Context, Namespace, Output, StoreUrl, ToolError, note, print_json, progress

if TYPE_CHECKING:
    from opdctl.kube.client import KubeApi
    from opdctl.kube.rayjob import JobState
    from opdctl.runs.find import Finder, RunPlace
    from opdctl.runs.record import RunRecord
    from opdctl.tables import Sheet

# Each thread waits for one small answer.
NUM_THREADS = 16
Job = tuple["JobState", int]
"""A RayJob and the number of GPUs that its pods hold."""
Row = dict[str, Any]


def list_runs(
    store: StoreUrl = None, namespace: Namespace = None, context: Context = None, output: Output = "table"
) -> None:
    """List runs of a namespace and of a store: phase, step, time left, accuracies, age, GPUs.

    Examples: `opdctl list -n opd` · `opdctl list --store s3://experiments/opd -o json`
    """
    from opd.errors import StoreError
    from opdctl.runs.find import Finder

    finder = Finder(store=store, namespace=namespace, context=context)
    is_asked = finder.is_named or finder.asks_for_stores
    jobs = live_runs(finder.connect()) if is_asked else []
    records: list[RunRecord] = []
    try:
        records = _records(finder, is_patient=not jobs)
    except (StoreError, ToolError) as error:
        if isinstance(error, StoreError) and jobs:
            note(f"note: the store was left out: {error}")
        elif not is_asked or getattr(error, "exit_code", 0) != EXIT_USAGE:
            raise  # else the cluster has answered, and no live run names a store
    found = rows(jobs, records)
    if output == "json":
        print_json({"runs": found})
    elif found:
        print(table(found))
    else:
        note("no runs here: a run appears with its RayJob, or in a store with its first attempt")


def live_runs(api: KubeApi) -> list[Job]:
    """Return the RayJob and the number of GPUs of every run in the namespace.

    Raises:
        ClusterError: the API server does not answer, or rejects a request.
    """
    from opdctl.kube.client import RUN_LABEL
    from opdctl.kube.rayjob import read_job
    from opdctl.kube.waiting import pod_lines

    held: dict[str, int] = {}
    for tree in api.list(api.path("pods"), selector=RUN_LABEL):
        [line] = pod_lines([tree])
        run_id = tree["metadata"]["labels"][RUN_LABEL]
        held[run_id] = held.get(run_id, 0) + (line.num_gpus if line.is_there else 0)
    jobs = [read_job(tree) for tree in api.list(api.path("rayjobs"), selector=RUN_LABEL)]
    return [(job, held.get(job.name, 0)) for job in jobs]


def _records(finder: Finder, *, is_patient: bool) -> list[RunRecord]:
    from opdctl.runs.gather import Causes

    causes: Causes | None = None if is_patient else {}
    places = finder.places([])
    with progress("reading runs", len(places)) as advance:
        records = _standings(places, advance, causes)
    for url, cause in (causes or {}).items():
        note(f"note: runs of {url} were left out: {cause}")
    return records


def _standings(places: Sequence[RunPlace], advance: Any, causes: Any) -> list[RunRecord]:
    """Return the record of every run that has started, in the order of `places`, as far as a list shows it."""
    from opdctl.runs.gather import gather, in_threads, leaving_out
    from opdctl.runs.record import told_apart

    call = by_summary if causes is None else leaving_out(by_summary, causes)
    found = {}
    for record in in_threads(call, places, num_threads=NUM_THREADS):
        if record is not None:
            found[record.url] = record
            advance()
    if others := [place for place in places if place.store.url not in found]:
        found |= {run.record.url: run.record for run in gather(others, on_done=advance, causes=causes)}
    return told_apart([found[place.store.url] for place in places if place.store.url in found])


def by_summary(place: RunPlace) -> RunRecord | None:
    """Return the run by its summary; None without a summary that is current."""
    from opd.errors import CorruptRecord
    from opd.redaction import one_line, redact
    from opd.runs.attempts import OWNER_FILE, attempt_prefix
    from opd.runs.summary import SUMMARY_FILE, Summary
    from opdctl.runs.record import RunRecord, ended_state

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


def rows(jobs: Iterable[Job], records: Iterable[RunRecord]) -> list[Row]:
    """Return one row a run: runs with a RayJob first, then runs of the store alone; each part by name.

    The step of a pipeline is the number of its finished stages. A run's age counts from its RayJob, else from its last sign.
    """
    by_name = {record.run_id: record for record in records}
    out = []
    for job, gpus in sorted(jobs, key=lambda item: item[0].name):
        out.append(_row(by_name.pop(job.name, None), job.name, job.phase, job.kind, gpus, job.created_s))
    for name, record in by_name.items():
        out.append(_row(record, name, record.state, record.kind, 0, record.last_sign_s))
    return out


def _row(record: RunRecord | None, run: str, phase: str, kind: str, gpus: int, since_s: float) -> Row:
    """Return plain values; None means that neither side knows."""
    from opdctl.runs.record import RunRecord

    of = record or RunRecord(run_id=run, url="", state=phase)
    return {
        "run": run,
        "phase": phase,
        "kind": kind,
        "step": of.last_step,
        "total_steps": of.total_steps,
        "stage": of.stage,
        "eta_s": of.eta_s,
        **of.accuracies(),
        "age_s": max(time.time() - since_s, 0.0) if since_s else None,
        "gpus": gpus,
        "attempts": of.num_attempts,
        "loss": of.loss,
        "checkpoint": of.complete_steps[-1] if of.complete_steps else None,
        "store": of.url,
    }


def table(found: Sequence[Row]) -> Sheet:
    """Return the rows as a table."""
    from opdctl.tables import NONE, Sheet, duration, number, percent

    lines = []
    for row in found:
        total = f"/{row['total_steps']}" if row["total_steps"] else ""
        step = row["stage"] or (NONE if row["step"] is None else f"{row['step']}{total}")
        accuracy = row["training_accuracy"]
        training = number(row["training_score"]) if accuracy is None else percent(accuracy)
        known = (duration(row["eta_s"]), percent(row["validation_accuracy"]), training, duration(row["age_s"]))
        counts = (str(row["gpus"] or NONE), row["kind"], str(row["attempts"] or NONE))
        lines.append((row["run"], row["phase"], step, *known, *counts))
    names = ("run", "phase", "step", "ETA", "val acc", "train acc", "age", "GPUs", "kind", "try")
    return Sheet(names=names, lines=lines)
