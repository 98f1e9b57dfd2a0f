"""What a pipeline promises that loses its head between two stages and inside of one: it ends as the one that was left alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.chaos.compare import differing_rows
from tests.e2e.promises.common import KILLED, Look, changes, clusters, ended, text, tree

from opd.runs.metrics import read_metrics
from opd.store.local import LocalStore

WHOLE_RUN, KILLED_RUN = "pipeline-whole", "pipeline-killed"
MODELS, STATUS = "models.json", "status.txt"
# Stage -> the attempts that the killed one's run has.
ATTEMPTS = {"warmup": 1, "warmup-model": 1, "distil": 2}
_TRAINED = ("warmup", "distil")


def _stage(run: str, stage: str) -> str:
    return f"{run}.store/stages/{run}-{stage}"


def _started_s(folder: Path, stage: str, attempt: int) -> float:
    return float(tree(folder, f"{_stage(KILLED_RUN, stage)}/attempts/{attempt:04d}/owner.json")["started_at_s"])


def _kills(folder: Path) -> list[dict[str, Any]]:
    kills = [json.loads(line) for line in text(folder, KILLED).splitlines()]
    return [one for one in kills if one.get("pod", "").startswith(f"{KILLED_RUN}-")]


def _killed_between(folder: Path) -> tuple[bool, str]:
    kill = _kills(folder)[0]
    since_s = kill["time"] - tree(folder, f"{_stage(KILLED_RUN, 'warmup')}/result.json")["finished_at_s"]
    until_s = _started_s(folder, "warmup-model", 1) - kill["time"]
    seen = f"{kill['num_processes']} processes killed {since_s:.1f} s behind warmup's result, warmup-model began {until_s:.1f} s later"
    return kill["num_processes"] > 0 and since_s > 0 and until_s > 0, seen


def _killed_inside(folder: Path) -> tuple[bool, str]:
    kill = _kills(folder)[1]
    since_s = kill["time"] - _started_s(folder, "distil", 1)
    until_s = _started_s(folder, "distil", 2) - kill["time"]
    seen = f"{kill['num_processes']} processes killed {since_s:.1f} s after distil began, its next attempt came {until_s:.1f} s later"
    return kill["num_processes"] > 0 and since_s > 0 and until_s > 0, seen


def _one_cluster_three_heads(folder: Path) -> tuple[bool, str]:
    names = clusters(folder, KILLED_RUN)
    pods = [pod["metadata"] for pod in changes(folder, KILLED_RUN, "pods")]
    heads = {pod["name"] for pod in pods if pod["labels"]["app.kubernetes.io/component"] == "head"}
    return (len(names), len(heads)) == (1, 3), f"{', '.join(names)}; heads {', '.join(sorted(heads))}"


def _no_stage_again(folder: Path) -> tuple[bool, str]:
    found = {stage: len(list((folder / _stage(KILLED_RUN, stage)).glob("attempts/*/owner.json"))) for stage in ATTEMPTS}
    return found == ATTEMPTS, str(found)


def _same_rows(folder: Path) -> tuple[bool, str]:
    found = []
    for stage in _TRAINED:
        wanted, mine = (read_metrics(LocalStore(folder / _stage(run, stage))).rows for run in (WHOLE_RUN, KILLED_RUN))
        found += [f"{stage}: {line}" for line in differing_rows(wanted, mine)]
        found += [] if wanted else [f"{stage}: no rows"]
    return not found, found[0] if found else f"every row of {' and '.join(_TRAINED)}"


def _same_results(folder: Path) -> tuple[bool, str]:
    results = [tree(folder, f"{run}.store/result.json") for run in (WHOLE_RUN, KILLED_RUN)]
    steps = [result["steps"] for result in results]
    stages = [sorted(result["stages"]) for result in results]
    return steps[0] == steps[1] == len(ATTEMPTS) and stages[0] == stages[1] == sorted(
        ATTEMPTS
    ), f"{steps} stages: {stages[1]}"


def _same_model(folder: Path) -> tuple[bool, str]:
    models = tree(folder, MODELS)
    return bool(models[WHOLE_RUN]) and models[WHOLE_RUN] == models[KILLED_RUN], str(models[KILLED_RUN])[:120]


def _status_names_the_stage(folder: Path) -> tuple[bool, str]:
    found = re.search(r"distil \(3 of 3\): \S[^:]* at step \d+", " ".join(text(folder, STATUS).split()))
    return found is not None, found[0] if found else "no stage named"


PROMISES: dict[str, Look] = {
    "a pipeline that is left alone: the RayJob SUCCEEDED": ended(WHOLE_RUN),
    "a pipeline that loses its head twice: the RayJob SUCCEEDED": ended(KILLED_RUN),
    "the head is lost between two stages": _killed_between,
    "the head is lost inside a stage": _killed_inside,
    "three heads in one Ray cluster": _one_cluster_three_heads,
    "no finished stage runs again": _no_stage_again,
    "both pipelines: every step's metrics are the same": _same_rows,
    "both pipelines: all stages are in the result": _same_results,
    "both pipelines: the model between the stages is the same, byte for byte": _same_model,
    "opdctl status names the stage that runs and its step": _status_names_the_stage,
}
