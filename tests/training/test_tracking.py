"""One run in W&B and MLflow for all attempts of a run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from opd.runs.run import Run
from opd.training import tracking


def attempt(folder: Path) -> Run:
    return Run.open(run_id="r", local_root=folder, spec={"a": 1}, spec_hash="h", tee=False)


def test_a_logger_whose_package_is_missing_is_refused_before_anything_starts(monkeypatch):
    monkeypatch.setitem(tracking._PACKAGES, "wandb", "no_such_package")
    with pytest.raises(tracking.MissingTracker, match=r"trainer\.loggers: wandb needs the package no_such_package"):
        tracking.check_installed(["console", "wandb"])
    tracking.check_installed(["console", "file"])


def test_the_run_id_is_wandb_s_unless_the_environment_says_otherwise(monkeypatch):
    monkeypatch.setattr(os, "environ", environment := {})
    tracking.set_wandb_environment("my-run")
    assert environment == {"WANDB_RUN_ID": "my-run", "WANDB_RESUME": "allow"}
    tracking.set_wandb_environment("other")
    assert environment["WANDB_RUN_ID"] == "my-run"


def test_the_model_s_name_is_a_tag_in_wandb(monkeypatch):
    monkeypatch.setattr(os, "environ", environment := {})
    tracking.set_wandb_environment("my-run", tags=("opd", "Qwen3, 8B" + "x" * 99))
    assert environment["WANDB_TAGS"] == "opd," + ("Qwen3  8B" + "x" * 99)[:64]


def test_the_model_s_name_is_a_tag_in_mlflow(mlflow, tmp_path):
    spec = {"kind": "opd", "model": {"name": "Qwen3-8B"}}
    with Run.open(run_id="r", local_root=tmp_path / "out", spec=spec, spec_hash="h", tee=False) as run:
        tracking.MlflowRun(run, project="p", params={}).finish(0)
    [found] = mlflow.MlflowClient().search_runs([mlflow.MlflowClient().get_experiment_by_name("p").experiment_id])
    assert (found.data.tags["kind"], found.data.tags["model"]) == ("opd", "Qwen3-8B")


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    found = pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/mlruns")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    yield found
    while found.active_run() is not None:
        found.end_run()


def test_a_later_attempt_goes_on_in_the_same_mlflow_run_although_its_parameters_differ(mlflow, tmp_path):
    for step in (1, 2):
        with attempt(tmp_path / "out") as run:
            tracker = tracking.MlflowRun(run, project="p", params={"resume_from": step, "lr": 0.1})
            tracker.log({"opd/loss": float(step), "note": "text"}, step)
            tracker.finish(0 if step == 2 else 1)
    client = mlflow.MlflowClient()
    [found] = client.search_runs([client.get_experiment_by_name("p").experiment_id])
    history = client.get_metric_history(found.info.run_id, "opd/loss")
    assert [(point.step, point.value) for point in history] == [(1, 1.0), (2, 2.0)]
    assert (found.data.params["resume_from"], found.info.status, found.info.run_name) == ("1", "FINISHED", "r")


def test_a_tracking_server_that_does_not_know_the_run_does_not_stop_the_training(mlflow, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)
    with attempt(tmp_path / "out") as run:
        tracker = tracking.MlflowRun(run, project="p", params={})
        tracker.log({"opd/loss": 1.0}, 1)
        tracker.finish(0)
    assert "going on without MLflow" in caplog.text
