"""A run's state for others: summary.json and when it is believed, and the snapshots of a living run."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from opd.errors import CorruptRecord, StoreUnavailable
from opd.runs.attempts import LEASE_TTL_S
from opd.runs.progress import Standing
from opd.runs.run import Run
from opd.runs.summary import SUMMARY_FILE, Summary
from opd.store.local import LocalStore

SPEC = {"kind": "grpo", "seed": 1, "trainer": {"total_steps": 9}}
SCORE = "val-core/math/acc/mean@4"


def stored(run: Run) -> Summary:
    return Summary.from_json(run.local.get_json(SUMMARY_FILE))  # type: ignore[arg-type]


def of(**changes: Any) -> dict[str, Any]:
    known: dict[str, Any] = {
        "attempt": 1, "kind": "opd", "outcome": "", "detail": "", "time_s": 1.5, "last_step": None, "total_steps": 4,
        "latest": {}, "checkpoint": None, "stage": "",
    }  # fmt: skip
    return known | changes


def test_a_finished_run_has_the_last_value_of_each_metric_of_its_headline(
    open_run: Callable, save_step: Callable
) -> None:
    with open_run(spec=SPEC) as run:
        for step in (1, 2):
            save_step(run.checkpoints, step)
        run.local.delete("checkpoints/global_step_2/COMPLETE")
        run.log(1, {"actor/pg_loss": 3.0, SCORE: 0.5, "actor/kl": 1.0})
        run.log(2, {"actor/pg_loss": math.nan})
        run.finish({"steps": 2})
    found = stored(run)
    assert (found.outcome, found.attempt, found.kind, found.last_step, found.total_steps, found.checkpoint) == (
        "finished", 1, "grpo", 2, 9, 1,
    )  # fmt: skip
    assert math.isnan(found.latest.pop("actor/pg_loss"))
    assert found.latest == {SCORE: 0.5}


@pytest.mark.parametrize(("kind", "stage"), [("pipeline", "distil (2 of 3), step 7"), ("opd", "")])
def test_a_running_pipelines_summary_names_its_stage_and_step(
    open_run: Callable, monkeypatch: pytest.MonkeyPatch, kind: str, stage: str
) -> None:
    standing = Standing(phase="rollout", step=7, progress_at_s=0.0, limit_s=None, stage="distil (2 of 3)")
    monkeypatch.setattr("opd.runs.summary.PROGRESS.read", lambda: standing)
    run = open_run(spec={**SPEC, "kind": kind})
    run.summary.write()
    assert (stored(run).stage, stored(run).outcome) == (stage, "")


def test_a_living_run_writes_its_summary_with_its_heartbeat(open_run: Callable, until: Callable) -> None:
    with open_run(lease_ttl_s=0.2) as run:
        until(lambda: run.local.exists(SUMMARY_FILE))
        assert stored(run).is_current
        run.local.put_json("attempts/0002/owner.json", {})
        run.local.put_json(SUMMARY_FILE, of(attempt=2))
    assert stored(run).attempt == 2, "an overtaken attempt leaves the summary alone"


def test_an_attempt_takes_over_the_values_of_the_attempt_before(open_run: Callable) -> None:
    with open_run() as run:
        run.log(5, {"opd/loss": 5.0, SCORE: 0.25})
    with open_run() as run:
        run.log(4, {"opd/loss": 0.4})
    found = stored(run)
    assert (found.outcome, found.attempt, found.last_step) == ("stopped", 2, 5)
    assert found.latest == {"opd/loss": 0.4, SCORE: 0.25}


def test_a_store_that_rejects_the_summary_ends_no_run(open_run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    put = LocalStore._put

    def reject(store: LocalStore, key: str, data: bytes) -> None:
        if key == SUMMARY_FILE:
            raise StoreUnavailable("no answer")
        put(store, key, data)

    monkeypatch.setattr(LocalStore, "_put", reject)
    with open_run(lease_ttl_s=0.1) as run:
        assert run.finish({"steps": 1})["steps"] == 1
    assert not run.local.exists(SUMMARY_FILE)


@pytest.mark.parametrize("age_s", [0.0, -2 * LEASE_TTL_S, 2 * LEASE_TTL_S])
def test_a_summary_without_an_end_is_believed_for_a_lease_by_both_clocks(
    age_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opd.runs.summary.time.time", lambda: 1000.0)
    assert Summary.from_json(of(time_s=1000.0 - age_s)).is_current is (age_s == 0.0)
    assert Summary.from_json(of(time_s=1000.0 - age_s, outcome="failed")).is_current


@pytest.mark.parametrize(
    "change",
    [
        {"latest": []}, {"latest": {"opd/loss": "high"}}, {"latest": {"opd/loss": 10**400}}, {"attempt": "1"},
        {"attempt": True}, {"last_step": -1}, {"last_step": 2**63}, {"kind": None}, {"time_s": "now"}, {"unknown": 1},
    ],
    ids=str,
)  # fmt: skip
def test_any_other_record_is_no_summary(change: dict[str, Any]) -> None:
    assert Summary.from_json(of()).model_dump() == of()
    with pytest.raises(CorruptRecord, match=r"summary\.json"):
        Summary.from_json(of(**change))


# ---- gauges ------------------------------------------------------------------------------------------------------------


def test_a_receiver_gets_finite_values_with_each_beat_and_at_the_end(open_run: Callable, until: Callable) -> None:
    seen: list[Any] = []
    with open_run(spec=SPEC, lease_ttl_s=0.05) as run, run.summary.telling(seen.append):
        until(lambda: len(seen) > 2)
        run.log(3, {"actor/pg_loss": 0.5, "timing_s/step": 4.0, "actor/skipped": 1, "critic/score/mean": 0.25})
        run.log(4, {"actor/pg_loss": math.nan, "actor/skipped": 2, SCORE: 0.75})
    found = {name.removeprefix("opd_"): value for name, value in seen[-1].items()}
    assert (found["step"], found["total_steps"], found["eta_seconds"]) == (4, 9, 20.0)
    assert (found["skipped_updates"], found["score"], found["loss"]) == (3, 0.75, None)


def test_a_receiver_that_fails_ends_no_run(open_run: Callable, caplog: pytest.LogCaptureFixture) -> None:
    def broken(values: Any) -> None:
        raise OSError("no answer")

    with open_run() as run, run.summary.telling(broken):
        run.summary.tell()
        run.summary.tell()
    assert len([record for record in caplog.records if "the run continues without" in record.message]) == 1
