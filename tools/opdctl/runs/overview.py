"""Runs of a namespace and of a store in one table: what the cluster says of those that live, and the store of all others."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from opdctl.kube.client import GROUPS, RUN_LABEL, KubeApi
from opdctl.kube.rayjob import JobState, read_job
from opdctl.kube.waiting import pod_lines
from opdctl.redact import one_line, redact
from opdctl.runs.records import RunRecord
from opdctl.runs.tables import STYLES, duration, number, percent

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
    eta_s: float | None = None
    score: float | None = None
    """Held-out accuracy of the first validation set, else the rollouts' own; in [0, 1]."""
    age_s: float | None = None
    """Since the run was made in the cluster; of one that is only in the store, since its last sign of life."""
    gpus: int = 0
    attempts: int = 0
    loss: float | None = None
    checkpoint: int | None = None
    store: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


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


def rows(jobs: Iterable[tuple[str, JobState, int]], records: Iterable[RunRecord]) -> list[Row]:
    """One row a run: those with a RayJob first, then those of the store alone; each part by name."""
    by_name = {record.run_id: record for record in records}
    out = []
    for namespace, job, gpus in sorted(jobs, key=lambda item: (item[0], item[1].name)):
        record = by_name.pop(job.name, None)
        age_s = max(time.time() - job.created_s, 0.0) if job.created_s else None
        out.append(_row(record, run=job.name, phase=job.phase, namespace=namespace, gpus=gpus, age_s=age_s))
    for name, record in by_name.items():
        age_s = max(time.time() - record.last_sign_s, 0.0) if record.last_sign_s else None
        out.append(_row(record, run=name, phase=record.state, age_s=age_s))
    return out


def _row(record: RunRecord | None, **known: Any) -> Row:
    if record is None:
        return Row(**known)
    validation = next((last for name, (_, last) in sorted(record.validation.items()) if "/acc/mean@" in name), None)
    return Row(
        **known,
        kind=record.kind,
        step=record.last_step,
        total_steps=record.total_steps,
        eta_s=record.eta_s,
        score=record.accuracy if validation is None else validation,
        attempts=record.num_attempts,
        loss=record.loss,
        checkpoint=record.complete_steps[-1] if record.complete_steps else None,
        store=redact(record.url),
    )


def table(found: Sequence[Row], *, width: int, is_wide: bool) -> Table:
    """The rows; columns that have no room go, the last ones first, and nothing is cut short."""
    lines = [_cells(row) for row in found]
    names = [*COLUMNS, *(WIDE if is_wide else ())]
    needed = {name: max(len(name), *(len(line[name]) for line in lines)) + 3 for name in names}
    while len(names) > 2 and sum(needed[name] for name in names) + 1 > width:
        names.pop()
    out = Table(*names)
    for column in out.columns:
        column.overflow = "fold"
    for line in lines:
        out.add_row(*(Text(line[name], style=STYLES.get(line[name], "") if name == "phase" else "") for name in names))
    return out


def _cells(row: Row) -> dict[str, str]:
    total = f"/{row.total_steps}" if row.total_steps else ""
    return {
        "run": one_line(row.run),
        "phase": row.phase,
        "step": "–" if row.step is None else f"{row.step}{total}",
        "ETA": "–" if row.eta_s is None else duration(row.eta_s),
        "score": percent(row.score),
        "age": "–" if row.age_s is None else duration(row.age_s),
        "GPUs": str(row.gpus or "–"),
        "namespace": row.namespace or "–",
        "kind": row.kind or "–",
        "try": str(row.attempts or "–"),
        "loss": number(row.loss),
        "checkpoint": "–" if row.checkpoint is None else str(row.checkpoint),
        "store": row.store or "–",
    }
