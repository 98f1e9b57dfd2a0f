"""`opdctl list`: the runs of a namespace and of a store in one table, each by its RayJob, its summary or its record."""

from collections.abc import Iterable
from dataclasses import replace

from opd.errors import CorruptRecord, StoreError, StoreUnavailable
from opd.redaction import one_line, redact
from opd.runs.attempts import OWNER_FILE, attempt_prefix
from opd.runs.summary import SUMMARY_FILE, Summary
from opd.store.transfer import in_threads
from opdctl.console import EXIT_USAGE, Context, Namespace, Output, StoreUrl, ToolError, note, print_json
from opdctl.kube.client import RUN_LABEL, KubeApi
from opdctl.kube.rayjob import JobState, read_job
from opdctl.kube.waiting import pod_lines
from opdctl.runs.find import Finder, RunPlace
from opdctl.runs.gather import read_place
from opdctl.runs.record import RunRecord, ended_state, is_validation, told_apart
from opdctl.runs.sheets import runs_sheet

# Each thread waits for one small answer; a run without a current summary is read whole.
NUM_THREADS = 16
Job = tuple[JobState, int]
"""A RayJob and the number of GPUs that its pods hold."""
NAMES = (
    "run_id", "kind", "state", "stage", "last_step", "total_steps", "eta_s", "loss", "training_accuracy", "training_score",
    "validation_accuracy", "checkpoint", "num_attempts", "num_gpus", "last_sign_s", "url",
)  # fmt: skip
"""The fields of a run in JSON."""


def list_runs(
    store: StoreUrl = None, namespace: Namespace = None, context: Context = None, output: Output = "table"
) -> None:
    """List runs of a namespace and of a store: state, step, time left, accuracies, GPUs.

    Examples: `opdctl list -n opd` · `opdctl list --store URL -o json`
    """
    finder = Finder(store=store, namespace=namespace, context=context)
    is_asked = finder.is_named or finder.asks_for_stores
    jobs = live_runs(finder.connect()) if is_asked else []
    records: list[RunRecord] = []
    try:
        records = _records(finder)
    except StoreError as error:
        if not jobs:
            raise
        note(f"note: the store was left out: {error}")
    except ToolError as error:
        if not is_asked or error.exit_code != EXIT_USAGE:
            raise  # else the cluster has answered, and no live run names a store
    found = merged(jobs, records)
    if output == "json":
        print_json({"runs": [record.to_json(NAMES) for record in found]})
    elif found:
        print(runs_sheet(found))
    else:
        note("no runs here: a run appears with its RayJob, or in a store with its first attempt")


def live_runs(api: KubeApi) -> list[Job]:
    """Return the RayJob and the number of GPUs of every run in the namespace."""
    held: dict[str, int] = {}
    for tree in api.list(api.path("pods"), selector=RUN_LABEL):
        [line] = pod_lines([tree])
        run_id = tree["metadata"]["labels"][RUN_LABEL]
        held[run_id] = held.get(run_id, 0) + (line.num_gpus if line.is_there else 0)
    jobs = [read_job(tree) for tree in api.list(api.path("rayjobs"), selector=RUN_LABEL)]
    return [(job, held.get(job.name, 0)) for job in jobs]


def _records(finder: Finder) -> list[RunRecord]:
    """Return the record of every run that has started, as far as a list shows it; a run that cannot be read is noted."""
    causes: dict[str, StoreError] = {}

    def read(place: RunPlace) -> RunRecord | None:
        root = place.store.url.rpartition("/")[0]
        if isinstance(causes.get(root), StoreUnavailable):
            return None  # one wait for a store without an answer
        try:
            if (record := by_summary(place)) is not None:
                return record
            run = read_place(place)
            return None if run is None else run.record
        except StoreError as error:
            if not isinstance(causes.get(root), StoreUnavailable):
                causes[root] = error
            return None

    found = [record for record in in_threads(read, finder.places([]), num_threads=NUM_THREADS) if record is not None]
    if causes and not found:
        raise next(iter(causes.values()))
    for url, cause in causes.items():
        note(f"note: runs of {url} were left out: {cause}")
    return told_apart(found)


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
        state=state,
        detail=redact(detail),
        num_attempts=summary.attempt,
        last_step=summary.last_step,
        total_steps=summary.total_steps,
        latest=summary.latest,
        validation={name: [value] for name, value in summary.latest.items() if is_validation(name)},
        checkpoints=[] if summary.checkpoint is None else [{"step": summary.checkpoint, "is_complete": True}],
        last_sign_s=summary.time_s,
        stage=one_line(summary.stage),
    )


def merged(jobs: Iterable[Job], records: Iterable[RunRecord]) -> list[RunRecord]:
    """Return one record a run: runs with a RayJob first, with the RayJob's phase, then runs of the store alone."""
    by_name = {record.run_id: record for record in records}
    out = []
    for job, num_gpus in sorted(jobs, key=lambda item: item[0].name):
        of = by_name.pop(job.name, None) or RunRecord(run_id=job.name, url="", state="", last_sign_s=job.created_s)
        out.append(replace(of, state=job.phase, kind=of.kind or job.kind, num_gpus=num_gpus))
    return out + list(by_name.values())
