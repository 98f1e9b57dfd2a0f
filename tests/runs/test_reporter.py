"""Who is told how a run stands: what they get, and that none of them can end or slow the run."""

from __future__ import annotations

import logging
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import certifi
import numpy as np
import pytest

from opd.errors import StoreUnavailable
from opd.runs.attempts import Claim
from opd.runs.reporter import ProgressConfigMap, Reporter, Snapshot, fields
from opd.runs.run import Run


def test_a_snapshot_holds_what_stands_for_the_run() -> None:
    reporter = Reporter(attempt=2)
    reporter.total_steps = 10
    reporter.add(lambda snapshot: None)
    reporter.go_on_from(2)
    assert reporter.snapshot().step == 2, "a resumed attempt does not fall back to 0 until its first step is done"
    reporter.see(3, {"actor/pg_loss": 0.5, "timing_s/step": 4.0, "actor/skipped": 1, "critic/score/mean": 0.25})
    reporter.see(
        4, {"actor/pg_loss": float("nan"), "timing_s/step": 2.0, "actor/skipped": 2, "note": "text", "list": np.ones(2)}
    )
    found = reporter.snapshot()
    assert (found.attempt, found.step, found.total_steps, found.num_skipped) == (2, 4, 10, 3)
    assert (found.eta_s, found.step_s, found.score) == (12.0, 2.0, (0.25, False))
    assert found.loss is None, "an older loss would hide that the newest is not a number"
    reporter.see(4, {"val-core/math/acc/mean@4": 0.75, "val-core/math/acc/mean@4/stderr": 0.1})
    assert reporter.snapshot().score == (0.75, True), "held-out accuracy counts before the rollouts' own"
    reporter.close("stopped")


def test_who_fails_is_tried_again_and_warned_of_once_and_the_others_are_told(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Snapshot] = []
    failures = threading.Semaphore(0)

    def broken(snapshot: Snapshot) -> None:
        failures.release()
        raise RuntimeError("away")

    reporter = Reporter(attempt=1, interval_s=0.01)
    with caplog.at_level(logging.WARNING):
        reporter.add(broken)
        reporter.add(told.append)
        assert all(failures.acquire(timeout=60) for _ in range(3))
        reporter.close("finished")
    assert [record.getMessage().count("away") for record in caplog.records] == [1]
    assert told[-1].phase == "finished"


def test_who_is_told_for_a_while_hears_nothing_after_it() -> None:
    told: list[Snapshot] = []
    reporter = Reporter(attempt=1, interval_s=0.01)
    with reporter.telling(told.append):
        while not told:
            threading.Event().wait(0.01)
        reporter.see(9, {"opd/loss": 0.25})
    heard = len(told)
    assert told[-1].step == 9, "the last it hears is how the run stands then"
    reporter.close("finished")
    assert len(told) == heard


def test_an_overtaken_attempt_says_nothing_of_the_run_that_is_another_s() -> None:
    told: list[Snapshot] = []
    reporter = Reporter(attempt=1, interval_s=60)
    reporter.add(told.append)
    reporter.close("overtaken")
    assert all(snapshot.phase != "overtaken" for snapshot in told)


def test_an_api_server_that_never_answers_ends_no_run(
    open_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copy(certifi.where(), tmp_path / "ca.crt")
    (tmp_path / "token").write_text("t")
    monkeypatch.setattr("opd.runs.reporter.TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        values = {
            "OPD_PROGRESS_OBJECT": "/api/v1/namespaces/opd/configmaps/r-progress",
            "OPD_PROGRESS_CREDENTIALS": str(tmp_path),
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(silent.getsockname()[1]),
        }
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        with open_run(tee=False) as run:
            asked, _ = silent.accept()
            run.log(1, {"opd/loss": 1.0})
            assert run.finish({"steps": 1})["steps"] == 1
        asked.close()
    assert any("r-progress" in record.getMessage() for record in caplog.records)


def test_the_end_is_told_before_a_store_that_is_away_is_waited_for(
    open_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    with open_run() as run:
        run.reporter.add(lambda snapshot: told.append(snapshot.phase))

        def away(claim: Claim, outcome: str, detail: str = "") -> None:
            told.append("waits for the store")
            raise StoreUnavailable("away")

        monkeypatch.setattr(Claim, "end", away)
    assert told[-2:] == ["stopped", "waits for the store"]


def test_what_says_nothing_new_is_not_written_again_nor_is_a_failed_write_hurried() -> None:
    written: list[dict] = []
    config_map = ProgressConfigMap("/x", host="", port=0, folder=None)  # type: ignore[arg-type]
    config_map._patch = lambda body: written.append(body["data"])  # type: ignore[method-assign]
    for step in (1, 1, 2):
        config_map(Snapshot(attempt=1, phase="rollout", step=step, eta_s=1.26, loss=1 / 3))
    assert [data["step"] for data in written] == ["1", "2"]
    assert (written[0]["etaSeconds"], written[0]["loss"], written[0]["score"]) == ("1", "0.333333", None)

    def refuse(body: dict) -> None:
        written.append(body["data"])
        raise OSError("the API server answers 403")

    config_map._patch = refuse  # type: ignore[method-assign]
    with pytest.raises(OSError, match="403"):
        config_map(Snapshot(attempt=1, phase="update", step=3))
    config_map(Snapshot(attempt=1, phase="update", step=4))
    assert len(written) == 3
    with pytest.raises(OSError, match="403"):
        config_map(Snapshot(attempt=1, phase="finished", step=4, is_over=True))
    assert written[-1]["phase"] == "finished", "no later snapshot would say how the run ended"


def test_numbers_are_written_as_numbers_and_what_is_unknown_is_taken_out() -> None:
    assert fields(Snapshot(attempt=1, phase="start", step=0)) == {
        "attempt": "1", "stage": None, "phase": "start", "step": "0", "totalSteps": None, "etaSeconds": None, "score": None, "scoreIsShare": None, "loss": None
    }  # fmt: skip


def test_a_stage_is_told_beside_what_its_run_says() -> None:
    said = fields(Snapshot(attempt=1, phase="rollout", step=7, stage="distil (2 of 3)", stage_step=7))
    assert (said["stage"], said["phase"], said["step"]) == ("distil (2 of 3)", "rollout", "7")


def test_a_pipeline_leaves_its_object_to_the_stage_that_runs(
    open_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr("opd.runs.run.ProgressConfigMap.of", lambda environment: lambda snapshot: told.append("told"))
    with open_run(run_id="pipe", tells_cluster=False):
        assert told == []
        with open_run(run_id="stage"):
            pass
    assert set(told) == {"told"}
    told.clear()
    with open_run(run_id="again", tells_cluster=False) as run:
        run.finish({"steps": 1})
    assert told == []


def test_a_pod_without_the_chart_s_object_writes_nothing() -> None:
    assert ProgressConfigMap.of({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}) is None
    assert ProgressConfigMap.of({"OPD_PROGRESS_OBJECT": "/x"}) is None
