"""One run from its cluster and its store together, as `status` shows it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from opd.runs.driver_log import LOG_FILE
from opd.runs.manifest import step_folder
from opd.runs.metrics import METRICS_FILE
from opd.runs.result import RESULT_FILE
from opdctl.kube.notice import Notice
from opdctl.kube.podlogs import last_line
from opdctl.kube.run import ClusterRun
from opdctl.redact import one_line, redact
from opdctl.runs.cache import cache_folder
from opdctl.runs.gather import gather
from opdctl.runs.layout import Cell, Sheet, facts
from opdctl.runs.listing import Listing
from opdctl.runs.record import RunRecord
from opdctl.runs.state import AttemptLine, attempt_lines
from opdctl.runs.tables import ago, duration, number, score_text
from opdctl.runs.targets import Found, locate

EVALUATION_FOLDER = "eval"


@dataclass(frozen=True, kw_only=True)
class RunView:
    """A run: what was found of it, its record (None where no store can be read), and its attempts."""

    found: Found
    record: RunRecord | None
    attempts: list[AttemptLine]
    places: dict[str, str]
    """Where its results lie: name -> URL."""
    last_line: str
    """The newest line of its log, where no store tells more."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values; `cluster` and `store` are null where that side was not to be asked."""
        seen, record = self.found.in_cluster, self.record
        cluster = None
        if self.found.api is not None and seen is not None and seen.is_known:
            cluster = {
                "namespace": self.found.api.namespace,
                "job": asdict(seen.job) if seen.job else None,
                "pods": [asdict(pod) for pod in seen.pods],
                "in_the_way": seen.blockers,
                "alarms": seen.alarms,
                "progress": seen.notice.to_json() if seen.notice else None,
            }
        store = None
        if record is not None:
            store = {name: value for name, value in record.to_json().items() if name != "spec"}
            score = record.rollout_score
            accuracy = score.value if score and score.is_share else None
            store |= {
                "loss": record.loss,
                "accuracy": accuracy,
                "score": score.value if score else None,
                "eta_s": record.eta_s,
            }
        return {
            "run": self.found.run_id,
            "cluster": cluster,
            "store": store,
            "attempts": [asdict(attempt) for attempt in self.attempts],
            "places": self.places,
            "notes": self.found.notes,
        }


def look_at(
    run: str, *, store: str | None, namespace: str | None, context: str | None, no_cluster: bool, use_cache: bool,
    timeout_s: float,
) -> RunView:  # fmt: skip
    """Reads a run.

    Raises:
        ToolError: neither cluster nor store knows it, or the one that was named does not answer.
    """
    found = locate(run, store=store, namespace=namespace, context=context, no_cluster=no_cluster, timeout_s=timeout_s)
    seen = found.in_cluster
    if found.place is None:
        line = ""
        if found.api is not None and seen is not None and seen.job is not None:
            line = last_line(found.api, found.run_id, seen.job.submission_mode)
        return RunView(found=found, record=None, attempts=[], places={}, last_line=line)
    with cache_folder(use_cache=use_cache) as folder:
        [gathered] = gather([found.place], folder=folder)
    listing = Listing(found.place.store)
    return RunView(
        found=found,
        record=gathered.record,
        attempts=attempt_lines(listing),
        places=_places(listing, gathered.record),
        last_line="",
    )


def _places(listing: Listing, record: RunRecord) -> dict[str, str]:
    """The files that people look for and that are there, of the newest attempt and checkpoint."""
    url = record.url.rstrip("/")
    found = {"run": url}
    for name, file in (("log", LOG_FILE), ("metrics", METRICS_FILE)):
        parts = [part for attempt in listing.folders() for part in listing.parts(attempt, file)]
        found |= {name: f"{url}/{parts[-1]}"} if parts else {}
    if record.complete_steps:
        found["checkpoint"] = f"{url}/{step_folder(record.complete_steps[-1])}"
    if any(key.startswith(f"{EVALUATION_FOLDER}/") for key in listing.objects):
        found["evaluation"] = f"{url}/{EVALUATION_FOLDER}"
    if RESULT_FILE in listing:
        found["result"] = f"{url}/{RESULT_FILE}"
    return found


PHASE_STYLES = {
    "running": "cyan",
    "succeeded": "green",
    "failed": "bold red",
    "invalid": "bold red",
    "stopped": "bold yellow",
    "retrying": "yellow",
    "suspended": "yellow",
    "deleting": "yellow",
}


def cluster_screen(run: ClusterRun, *, namespace: str, last_line: str = "") -> Group:
    """The cluster's side of `opdctl status`.

    Args:
        last_line: the newest line of the driver's log, where no store tells more.
    """
    parts: list[RenderableType] = [Text(f"!!! {redact(alarm)}", style="bold white on red") for alarm in run.alarms]
    rows: list[tuple[str, Cell]] = []
    if run.job is None:
        rows.append(("cluster", f"no RayJob in namespace {namespace}: deleted, or cleaned up after its end"))
    else:
        rows.append(("cluster", Text(redact(run.job.describe()), style=PHASE_STYLES.get(run.job.phase, ""))))
        rows.append(("namespace", namespace))
        if run.job.started_s:
            rows.append(("started", ago(run.job.started_s)))
    if run.notice is not None:
        rows.append(("progress", notice_line(run.notice)))
    if last_line:
        rows.append(("log", redact(last_line)))
    parts.append(facts(rows))
    parts += [Text(f"in the way: {redact(reason)}", style="bold yellow") for reason in run.blockers]
    if run.pods:
        parts.append(_pods(run))
    return Group(*parts)


def notice_line(notice: Notice) -> str:
    """`rollout at step 7/40, score 62.3 %, loss 0.41, 12 min left, attempt 2; written 5 s ago`; of a pipeline behind its stage."""
    total = f"/{notice.total_steps}" if notice.total_steps else ""
    parts = [
        f"{one_line(notice.phase)} at step {notice.step}{total}" if notice.step is not None else one_line(notice.phase)
    ]
    parts += [f"score {score_text(notice.score)}"] if notice.score is not None else []
    parts += [f"loss {number(notice.loss)}"] if notice.loss is not None else []
    parts += [f"{duration(notice.eta_s)} left"] if notice.eta_s is not None else []
    parts += [f"attempt {notice.attempt}"] if notice.attempt is not None else []
    stage = f"{one_line(notice.stage)}: " if notice.stage else ""
    return f"{stage}{', '.join(parts)}; written {ago(notice.updated_at_s)}"


def _pods(run: ClusterRun) -> Sheet:
    lines = [
        (
            pod.name,
            pod.role,
            pod.phase,
            str(pod.num_gpus) if pod.num_gpus else "–",
            pod.node or "–",
            str(pod.num_restarts),
            Text(redact(pod.why), style="yellow"),
        )
        for pod in run.pods
    ]
    return Sheet(names=("pod", "role", "phase", "GPUs", "node", "restarts", "why"), lines=lines, title="pods")
