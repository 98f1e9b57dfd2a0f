"""`opdctl status`: one screen about one run, from its cluster and its store."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opdctl.commands.watching import Watch, look_and_show
from opdctl.console import (
    DEFAULT_TIMEOUT_S,
    Context,
    Namespace,
    NoCache,
    NoCluster,
    Run,
    StoreUrl,
    Timeout,
    note,
    print_json,
)

if TYPE_CHECKING:
    from opdctl.kube.run import ClusterRun
    from opdctl.runs.attempts import AttemptLine
    from opdctl.runs.listing import Listing
    from opdctl.runs.places import Found
    from opdctl.runs.record import RunRecord


class Format(StrEnum):
    """The forms of the state."""

    TEXT = "text"
    JSON = "json"


Output = Annotated[Format, typer.Option("--output", "-o", help="Form of the state.")]


def status(
    run: Run,
    store: StoreUrl = None,
    namespace: Namespace = None,
    context: Context = None,
    no_cluster: NoCluster = False,
    output: Output = Format.TEXT,
    watch: Watch = False,
    no_cache: NoCache = False,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show one run: phase, reasons of a delay, pods; step, loss, accuracies, time left; attempts and checkpoints.

    Examples: `opdctl status my-run -n opd -w` · `opdctl status quickstart --store build/quickstart/store -o json`
    """
    from opdctl.runs.places import Finder

    finder = Finder(store=store, namespace=namespace, context=context, no_cluster=no_cluster, timeout_s=timeout)
    look_and_show(
        lambda: _look(finder.locate(run), use_cache=not no_cache),
        lambda view: _show(view, output),
        is_watching=watch,
        timeout_s=timeout,
    )


@dataclass(frozen=True, kw_only=True)
class View:
    """A run: what was found of it, its record (None without a readable store), its attempts and its files' URLs."""

    found: Found
    record: RunRecord | None = None
    attempts: list[AttemptLine]
    places: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return plain values; `cluster` and `store` are null where that side was not read."""
        seen, cluster = self.found.in_cluster, None
        if self.found.api is not None and seen is not None and seen.is_known:
            cluster = {
                "namespace": self.found.api.namespace,
                "job": asdict(seen.job) if seen.job else None,
                "pods": [asdict(pod) for pod in seen.pods],
                "in_the_way": seen.blockers,
                "alarms": seen.alarms,
            }
        record = self.record.to_json() if self.record is not None else None
        return {
            "run": self.found.run_id,
            "cluster": cluster,
            "store": record and {name: value for name, value in record.items() if name != "spec"},
            "attempts": [asdict(attempt) for attempt in self.attempts],
            "places": self.places,
            "notes": self.found.notes,
        }


def _look(found: Found, *, use_cache: bool) -> View:
    from opdctl.runs.attempts import attempt_lines
    from opdctl.runs.gather import cache_folder, gather

    if found.place is None:
        return View(found=found, attempts=[], places={})
    with cache_folder(use_cache=use_cache) as folder:
        [run] = gather([found.place], folder=folder)
    places = _places(run.listing, run.record)
    return View(found=found, record=run.record, attempts=attempt_lines(run.listing), places=places)


def _places(listing: Listing, record: RunRecord) -> dict[str, str]:
    """Return the URLs of the newest attempt's files, the newest checkpoint and the results."""
    from opd.runs.driver_log import LOG_FILE
    from opd.runs.manifest import step_folder
    from opd.runs.metrics import METRICS_FILE
    from opd.runs.result import RESULT_FILE

    url = record.url.rstrip("/")
    found = {"run": url}
    for name, file in (("log", LOG_FILE), ("metrics", METRICS_FILE)):
        parts = [part for attempt in listing.folders() for part in listing.parts(attempt, file)]
        found |= {name: f"{url}/{parts[-1]}"} if parts else {}
    if record.complete_steps:
        found["checkpoint"] = f"{url}/{step_folder(record.complete_steps[-1])}"
    if "eval" in listing.tops:
        found["evaluation"] = f"{url}/eval"
    if RESULT_FILE in listing:
        found["result"] = f"{url}/{RESULT_FILE}"
    return found


def _show(view: View, output: Format) -> None:
    if output is Format.JSON:
        print_json(view.to_json())
        return
    found, seen = view.found, view.found.in_cluster
    if found.api is not None and seen is not None and seen.is_known:
        _show_cluster(seen, namespace=found.api.namespace)
    if view.record is not None:
        _show_record(view.record, view.attempts)
    for remark in found.notes:
        note(f"note: {remark}")


def _show_cluster(run: ClusterRun, *, namespace: str) -> None:
    from rich.text import Text

    from opd.redaction import redact
    from opdctl.runs.tables import NONE, STYLES, Cell, Sheet, ago, facts, show

    rows: list[tuple[str, Cell]] = []
    if run.job is None:
        rows.append(("cluster", f"no RayJob in namespace {namespace}: deleted, or cleaned up after its end"))
    else:
        rows.append(("cluster", Text(redact(run.job.describe()), style=STYLES.get(run.job.phase, ""))))
        rows += [("namespace", namespace), ("started", ago(run.job.started_s))]
    show(*(Text(f"!!! {redact(alarm)}", style="bold white on red") for alarm in run.alarms), facts(rows))
    show(*(Text(f"in the way: {redact(reason)}", style="bold yellow") for reason in run.blockers))
    lines = [
        (
            pod.name,
            pod.role,
            pod.phase,
            str(pod.num_gpus or NONE),
            pod.node or NONE,
            str(pod.num_restarts),
            redact(pod.why),
        )
        for pod in run.pods
    ]
    if lines:
        show(Sheet(names=("pod", "role", "phase", "GPUs", "node", "restarts", "why"), lines=lines, title="pods"))


def _show_record(record: RunRecord, attempts: list[AttemptLine]) -> None:
    from rich.text import Text

    from opd.redaction import one_line, redact
    from opdctl.runs import tables

    rows: list[tuple[str, tables.Cell]] = [
        ("run", record.run_id),
        ("kind", record.kind or "?"),
        ("model", redact(record.model)),
        ("state", tables.state_text(record.state)),
        ("step", tables.progress_text(record)),
        ("loss", tables.number(record.loss)),
        ("train acc", tables.training_text(record)),
        ("validation", "\n".join(tables.validation_lines(record))),
        ("time left", tables.duration(record.eta_s) if record.eta_s is not None else ""),
        ("last sign", tables.ago(record.last_sign_s)),
        ("checkpoints", ", ".join(map(str, record.complete_steps)) or "none complete"),
        ("store", redact(record.url)),
    ]
    if attempts and (progress := attempts[-1].progress) is not None:
        rows.append(("progress", Text(tables.progress_line(progress), style="yellow" * progress.is_stuck)))
    tables.show(tables.facts((name, cell) for name, cell in rows if str(cell) not in ("", tables.NONE)))
    lines = [
        (str(line.attempt), one_line(line.host), tables.ago(line.started_at_s), redact(line.end or "not yet"))
        for line in attempts
    ]
    tables.show(tables.Sheet(names=("attempt", "host", "started", "ended"), lines=lines, title="attempts"))
    texts = [f"{record.state}: {record.detail}"] if record.detail else []
    texts += [f"fault {fault}" for fault in record.faults] + [f"warning: {problem}" for problem in record.problems]
    tables.show(*(Text(redact(text), style="yellow") for text in texts))
