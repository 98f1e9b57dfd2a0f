"""`opdctl list`: live runs and those of a store in one table, for people on any screen and for programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from opdctl.kube.rayjob import read_job
from opdctl.runs.overview import Row, rows

CREATED = "2026-11-21T10:00:00Z"


def job(name: str, status: str) -> Any:
    metadata = {"name": name, "creationTimestamp": CREATED, "labels": {"opd/run-id": name}}
    return read_job({"metadata": metadata, "spec": {}, "status": {"jobDeploymentStatus": status}})


def test_a_live_run_is_told_by_the_cluster_and_by_its_store_together() -> None:
    from opdctl.runs.records import RunRecord

    def record(name: str, state: Any) -> RunRecord:
        return RunRecord(
            run_id=name, url=f"s3://b/{name}", kind="opd", spec_hash="", state=state, detail="", num_attempts=2, last_step=3,
            total_steps=10, latest={"opd/loss": 0.5, "timing/step_s": 60.0},
            validation={"val-core/math/acc/mean@4": [0.1, 0.4]},
        )  # fmt: skip

    found = rows(
        [("opd", job("live", "Running"), 8), ("opd", job("waiting", "Initializing"), 0)],
        [record("live", "running"), record("done", "succeeded")],
    )
    assert [(row.run, row.phase, row.step, row.gpus) for row in found] == [
        ("live", "running", 3, 8),
        ("waiting", "starting", None, 0),
        ("done", "succeeded", 3, 0),
    ]
    assert found[0].eta_s == 420.0
    assert found[0].score == 0.4


def test_programs_get_json_yaml_and_names(inside: Callable, make_run: Callable, store: Path) -> None:
    make_run("a", result={"steps": 1})
    make_run("b")
    as_json = json.loads(inside("list", "--store", store, "-o", "json").stdout)["runs"]
    as_yaml = yaml.safe_load(inside("list", "--store", store, "-o", "yaml").stdout)["runs"]
    assert [run["run"] for run in as_json] == [run["run"] for run in as_yaml] == ["a", "b"]
    assert as_json[0].keys() == Row.__dataclass_fields__.keys()
    assert inside("list", "--store", store, "-o", "name").stdout.split() == ["a", "b"]
    assert str(store / "a") in inside("list", "--store", store, "-o", "wide").stdout.replace("\n", "")


@pytest.mark.parametrize("width", [20, 40, 60, 80])
def test_a_narrow_screen_gets_fewer_columns_and_no_dots(
    inside: Callable, make_run: Callable, store: Path, width: int
) -> None:
    make_run("opd-qwen3-1-7b", result={"steps": 1})
    done = inside("list", "--store", store, COLUMNS=str(width))
    assert done.returncode == 0
    assert "…" not in done.stdout
    assert "..." not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= width
    if width >= 40:
        assert "opd-qwen3-1-7b" in done.stdout
        assert "succeeded" in done.stdout
