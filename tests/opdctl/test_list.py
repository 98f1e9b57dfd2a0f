"""`opdctl list`: live runs and runs of a store in one table, for people and for programs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opd.runs.summary import SUMMARY_FILE
from opd.store.local import LocalStore
from opdctl.commands import list_runs
from opdctl.commands.list_runs import merged
from opdctl.kube.rayjob import read_job
from opdctl.runs.record import RunRecord

from .conftest import SPEC
from .test_store_commands import seal_checkpoint

CREATED = "2026-11-21T10:00:00Z"


def job(name: str, status: str) -> Any:
    metadata = {"name": name, "creationTimestamp": CREATED, "labels": {"opd/run-id": name}}
    return read_job({"metadata": metadata, "spec": {}, "status": {"jobDeploymentStatus": status}})


def test_a_live_run_is_shown_by_the_cluster_and_by_its_store_together() -> None:
    def record(name: str, state: str) -> RunRecord:
        latest = {"opd/loss": 0.5, "timing_s/step": 60.0, "val-core/math/acc/mean@4": 0.4}
        return RunRecord(run_id=name, url=f"s3://b/{name}", state=state, last_step=3, total_steps=10, latest=latest)

    jobs = [(job("live", "Running"), 8), (job("waiting", "Initializing"), 0)]
    live = merged(jobs, [record("live", "running"), record("done", "succeeded")])
    assert [(run.run_id, run.state, run.last_step, run.num_gpus) for run in live] == [
        ("live", "running", 3, 8), ("waiting", "starting", None, 0), ("done", "succeeded", 3, 0)
    ]  # fmt: skip
    assert (live[0].eta_s, live[0].validation_accuracy) == (420.0, 0.4)


def test_a_run_s_summary_says_what_its_other_files_say(
    inside: Callable, make_run: Callable, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    score = "val-core/math/acc/mean@4"
    make_run("done", attempts=[{1: {score: 0.5}, 2: {"opd/loss": 2.0}}, {2: {"opd/loss": 1.5}}], result={"steps": 2})
    make_run("stopped", attempts=[{1: {"opd/loss": float("inf"), "timing_s/step": 2.0}}], spec={**SPEC, "kind": "grpo"})
    make_run("nothing", attempts=[{}])
    seal_checkpoint(store / "done", 2, {"data.pt": b"abc"})
    summary = store / "done" / SUMMARY_FILE
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"checkpoint": 2}))

    def seen() -> list[dict[str, Any]]:
        found = json.loads(inside("list", "--store", store, "-o", "json").stdout)["runs"]
        return [{name: value for name, value in row.items() if name != "last_sign_s"} for row in found]

    by_summary = seen()
    with monkeypatch.context() as patch:
        patch.setattr(list_runs, "by_summary", lambda place: None)
        assert seen() == by_summary
    assert [(row["run_id"], row["state"], row["validation_accuracy"], row["checkpoint"]) for row in seen()] == [
        ("done", "succeeded", 0.5, 2), ("nothing", "stopped", None, None), ("stopped", "stopped", None, None)
    ]  # fmt: skip


def test_a_list_of_many_runs_asks_once_for_their_names_and_once_for_each(
    inside: Callable, make_run: Callable, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [make_run(name, result={"steps": 1}) for name in ("a", "b", "c")]
    names.append(make_run("stopped"))
    asked: list[str] = []
    for method in ("_get", "_list", "_info", "_children"):
        call = getattr(LocalStore, method)
        monkeypatch.setattr(
            LocalStore, method, lambda self, key, call=call: asked.append(f"{self.root.name}/{key}") or call(self, key)
        )
    inside("list", "--store", store)
    summaries = [f"{name}/{SUMMARY_FILE}" for name in names]
    assert sorted(asked) == sorted([f"{store.name}/", *summaries, "stopped/attempts/0002/owner.json"])


def test_a_score_on_a_scale_of_its_own_is_no_percentage(inside: Callable, make_run: Callable, store: Path) -> None:
    make_run("grpo", attempts=[{1: {"critic/score/mean": -2.5}}])
    make_run("opd", attempts=[{1: {"opd/accuracy": 0.25, "critic/score/mean": -2.5}}])
    shown = inside("list", "--store", store).stdout.splitlines()
    [grpo], [opd] = ([line for line in shown if line.split()[0] == name] for name in ("grpo", "opd"))
    assert " -2.5 " in grpo
    assert " 25.0 % " in opd
