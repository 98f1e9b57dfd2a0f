"""How long a run that has lost a pod needs to the end of its next optimizer step, and which part of it takes how long.

From the evidence of the fault scenarios alone. Ray's own start is what the run's first cluster needed: from the start of its head's
container until the last of its pods was ready by KubeRay's probes. It happens again after a loss and is nobody's to shorten here;
everything else is a recovery's own: noticing, new pods, submission, imports, the claim, models, checkpoint, the step.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.promises.common import (
    KILLED,
    UNREADABLE,
    Look,
    changes,
    metrics_rows,
    one_after_the_other,
    role_of,
    started,
    text,
    tree,
    unix,
)
from tests.e2e.promises.pipeline import KILLED_RUN

ALLOWANCE_S = 60.0
RESUMED = "resumed.json"
"""When a suspended run was told to go on."""


@dataclass(frozen=True, kw_only=True)
class Loss:
    """What an attempt goes on from.

    Attributes:
        what: for people.
        run: the release.
        attempt: number of the attempt that goes on.
        at_s: Unix seconds of the loss, from a scenario's folder.
        stage: of a pipeline, the one that the attempt is of.
    """

    what: str
    run: str
    attempt: int
    at_s: Callable[[Path], float]
    stage: str = ""

    def place(self, attempt: int | None = None) -> str:
        """Folder of the attempt that goes on, or of another, in the evidence."""
        stage = f"/stages/{self.run}-{self.stage}" if self.stage else ""
        return f"{self.run}.store{stage}/attempts/{attempt or self.attempt:04d}"


def killed(run: str, number: int = 0) -> Callable[[Path], float]:
    """When every process of a pod was killed, of the run's kills one."""

    def at_s(folder: Path) -> float:
        kills = [json.loads(line) for line in text(folder, KILLED).splitlines()]
        return float([one["time"] for one in kills if one.get("pod", "").startswith(f"{run}-")][number])

    return at_s


def deleted(run: str, reason: str) -> Callable[[Path], float]:
    """When a pod was asked to go, by the reason of its disruption; whole seconds."""

    def at_s(folder: Path) -> float:
        return next(
            unix(pod["metadata"]["deletionTimestamp"]) - pod["metadata"]["deletionGracePeriodSeconds"]
            for pod in changes(folder, run, "pods")
            if "deletionTimestamp" in pod["metadata"]
            and reason in [one.get("reason") for one in pod["status"].get("conditions", ())]
        )

    return at_s


def out_of_memory(run: str) -> Callable[[Path], float]:
    """When a container was killed for its memory; whole seconds."""

    def at_s(folder: Path) -> float:
        ends = [
            one["terminated"]
            for pod in changes(folder, run, "pods")
            for status in pod["status"].get("containerStatuses", ())
            for one in (status.get("state", {}), status.get("lastState", {}))
            if "terminated" in one
        ]
        return min(unix(end["finishedAt"]) for end in ends if end["reason"] == "OOMKilled")

    return at_s


LOSSES: dict[str, tuple[Loss, ...]] = {
    "pipeline": (
        Loss(what="head killed in a pipeline's stage", run=KILLED_RUN, attempt=2, at_s=killed(KILLED_RUN, 1), stage="distil"),
    ),
    "worker-lost": (Loss(what="worker killed", run="worker-lost", attempt=2, at_s=killed("worker-lost")),),
    "head-lost": tuple(
        Loss(what=f"head killed, {mode}", run=run, attempt=2, at_s=killed(run))
        for run, mode in (("head-lost-http", "HTTPMode"), ("head-lost-job", "K8sJobMode"))
    ),
    "out-of-memory": (
        Loss(what="worker out of memory", run="out-of-memory", attempt=2, at_s=out_of_memory("out-of-memory")),
    ),
    "evicted-preempted": (
        Loss(what="worker evicted", run="evicted-preempted", attempt=2, at_s=deleted("evicted-preempted", "EvictionByEvictionAPI")),
        Loss(what="worker preempted", run="evicted-preempted", attempt=3, at_s=deleted("evicted-preempted", "PreemptionByScheduler")),
    ),
    "suspended": (
        Loss(what="suspended, from the resume on", run="suspended", attempt=2, at_s=lambda folder: tree(folder, RESUMED)["time"]),
    ),
}  # fmt: skip


def promises(scenario: str) -> dict[str, Look]:
    """One for each loss of a scenario."""
    words = f"the next optimizer step ends within {ALLOWANCE_S:.0f} s beyond Ray's own start"
    return {f"{loss.what}: {words}": within_allowance(loss) for loss in LOSSES.get(scenario, ())}


def within_allowance(loss: Loss) -> Look:
    """From the loss to the end of the first step that the next attempt trains."""

    def look(folder: Path) -> tuple[bool, str]:
        parts, own_s = breakdown(folder, loss), ray_start_s(folder, loss.run)
        took_s = sum(parts.values())
        shown = ", ".join(f"{name} {seconds:.0f}" for name, seconds in parts.items())
        return took_s <= own_s + ALLOWANCE_S, f"{took_s:.0f} s, Ray's own start {own_s:.0f} ({shown})"

    return look


def breakdown(folder: Path, loss: Loss) -> dict[str, float]:
    """Part -> seconds, one after the other, from the loss to the first step's row; times of pods and jobs are whole seconds."""
    lost_s, row = loss.at_s(folder), _first_row(folder, loss.place())
    claimed_s = float(tree(folder, f"{loss.place()}/owner.json")["started_at_s"])
    asked_s = claimed_s - row["timing_start/claim_s"]
    marks = {
        "noticed, attempt ended": _ended_s(folder, loss, lost_s),
        "new pods": max(_within(lost_s, asked_s, _head_starts(folder, loss.run))),
        "Ray's start": max(_within(lost_s, asked_s, _job_starts(folder, loss.run))),
        "launcher and imports": asked_s,
        "claim": claimed_s,
        "workers join": claimed_s + row["timing_start/Ray_s"],
        "models and checkpoint": row["time"] - row["timing_s/step"],
        "step": row["time"],
    }
    return one_after_the_other(marks, lost_s)


def table(build: Path) -> list[str]:
    """Rows of a Markdown table: each loss of which the folder of scenarios has evidence, its seconds, and those of its parts."""
    rows = []
    for scenario, losses in LOSSES.items():
        for loss in losses:
            with contextlib.suppress(*UNREADABLE):
                parts, own_s = breakdown(build / scenario, loss), ray_start_s(build / scenario, loss.run)
                if not rows:
                    heads = ["lost", "to the next step", "Ray's own start", *parts]
                    rows += [heads, ["---", *["---:"] * (len(heads) - 1)]]
                rows.append(
                    [loss.what, *(f"{seconds:.0f}" for seconds in (sum(parts.values()), own_s, *parts.values()))]
                )
    return [f"| {' | '.join(cells)} |" for cells in rows]


def ray_start_s(folder: Path, run: str) -> float:
    """Seconds of the run's first Ray cluster from its head's container to the last pod's being ready, as KubeRay's probes have it."""
    first = changes(folder, run, "rayjobs")
    cluster = next(name for one in first if (name := one.get("status", {}).get("rayClusterName")))
    ready: dict[str, float] = {}
    for pod in _ray_pods(folder, run):
        if pod["metadata"]["labels"]["ray.io/cluster"] == cluster:
            for condition in pod["status"].get("conditions", ()):
                if condition["type"] == "Ready" and condition["status"] == "True":
                    ready.setdefault(role_of(pod), unix(condition["lastTransitionTime"]))
    return max(ready.values()) - min(_head_starts(folder, run))


def _first_row(folder: Path, place: str) -> dict[str, Any]:
    """Of the attempt's first training step."""
    return next(row for row in metrics_rows(folder, place) if "training/global_step" in row)


def _ended_s(folder: Path, loss: Loss, lost_s: float) -> float:
    """When the attempt before has ended itself; the loss, where it could not."""
    path = folder / loss.place(loss.attempt - 1) / "ended.json"
    return json.loads(path.read_text())["time_s"] if path.is_file() else lost_s


def _within(since_s: float, until_s: float, times: Iterable[float]) -> list[float]:
    return [since_s, *(time for time in times if since_s <= time <= until_s)]


def _ray_pods(folder: Path, run: str) -> Iterator[dict[str, Any]]:
    return (pod for pod in changes(folder, run, "pods") if role_of(pod) in ("head", "worker"))


def _head_starts(folder: Path, run: str) -> list[float]:
    """When a head's containers were started, each as often as it was seen."""
    states = [
        status["state"]
        for pod in _ray_pods(folder, run)
        if role_of(pod) == "head"
        for status in pod["status"].get("containerStatuses", ())
    ]
    return [unix(at) for state in states if (at := started(state))]


def _job_starts(folder: Path, run: str) -> list[float]:
    """When Ray started the run's job, by KubeRay; as often as it was seen."""
    jobs = [one.get("status", {}).get("rayJobInfo", {}) for one in changes(folder, run, "rayjobs")]
    return [unix(job["startTime"]) for job in jobs if "startTime" in job]
