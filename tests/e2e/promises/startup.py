"""Where the time from `helm install` to the first step's line goes, from the evidence of the first scenario."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e.promises.common import changes, metrics_rows, one_after_the_other, role_of, started, tree, unix

RUN = "opd-run"
ALLOWANCE_S = 10.0


def within_allowance(folder: Path) -> tuple[bool, str]:
    """Against a bare RayJob on the same image plus the trainer's own start-up outside any pod."""
    clock, floor = tree(folder, "clock.json"), tree(folder, "floor.json")
    took_s = clock["first_line"] - clock["install"]
    least_s = floor["kuberay_s"] + floor["trainer_s"]
    parts = ", ".join(f"{name} {seconds:.0f}" for name, seconds in breakdown(folder).items())
    observed = f"{took_s:.0f} s against {floor['kuberay_s']:.0f} + {floor['trainer_s']:.0f} ({parts})"
    return took_s <= least_s + ALLOWANCE_S, observed


def breakdown(folder: Path) -> dict[str, float]:
    """Part -> seconds, one after the other; pods' times are whole seconds."""
    clock = tree(folder, "clock.json")
    head, submitter = (_first_times(folder, wanted) for wanted in ("head", "submitter"))
    owner = json.loads((folder / f"{RUN}.store/attempts/0001/owner.json").read_text())
    first = next(row for row in metrics_rows(folder, f"{RUN}.store/attempts/0001") if row["step"] == 1)
    marks = {
        "install and operator": head["created"],
        "scheduling": head["scheduled"],
        "image and containers": head["started"],
        "Ray's start": submitter["created"],
        "submitter": submitter["started"],
        "submission and imports": owner["started_at_s"],
        "models, validation, first step": first["time"],
        "its log line": clock["first_line"],
    }
    return one_after_the_other(marks, clock["install"])


def _first_times(folder: Path, wanted: str) -> dict[str, float]:
    """Unix seconds at which the role's first pod was created and scheduled and its container started."""
    times: dict[str, float] = {}
    for pod in changes(folder, RUN, "pods"):
        if role_of(pod) != wanted:
            continue
        times.setdefault("created", unix(pod["metadata"]["creationTimestamp"]))
        for condition in pod["status"].get("conditions", ()):
            if condition["type"] == "PodScheduled" and condition["status"] == "True":
                times.setdefault("scheduled", unix(condition["lastTransitionTime"]))
        for status in pod["status"].get("containerStatuses", ()):
            if at := started(status["state"]):
                times.setdefault("started", unix(at))
    return times
