"""summary.json: what it says of a run, when it is written, and when it is believed."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from opd.errors import CorruptRecord, StoreUnavailable
from opd.runs.attempts import DEFAULT_LEASE_TTL_S
from opd.runs.progress import Standing
from opd.runs.run import Run
from opd.runs.summary import SUMMARY_FILE, Summary
from opd.store.local import LocalStore

SPEC = {"kind": "grpo", "seed": 1, "trainer": {"total_steps": 9}}
SCORE = "val-core/math/acc/mean@4"


def stored(run: Run) -> Summary:
    record = run.local.get_json(SUMMARY_FILE)
    assert record is not None
    return Summary.from_json(record)


def of(**changes: Any) -> dict[str, Any]:
    known: dict[str, Any] = {
        "attempt": 1, "kind": "opd", "outcome": "", "detail": "", "time_s": 1.5, "last_step": None, "total_steps": 4,
        "latest": {}, "checkpoint": None,
    }  # fmt: skip
    return known | changes


def test_a_run_that_is_done_says_so_with_the_last_value_of_each_metric_of_its_headline(open_run: Callable) -> None:
    with open_run(spec=SPEC) as run:
        run.log(1, {"actor/pg_loss": 3.0, SCORE: 0.5, "actor/kl": 1.0})
        run.log(2, {"actor/pg_loss": math.nan})
        run.finish({"steps": 2})
    found = stored(run)
    assert (found.outcome, found.attempt, found.kind, found.last_step, found.total_steps) == (
        "finished",
        1,
        "grpo",
        2,
        9,
    )
    assert found.latest[SCORE] == 0.5
    assert math.isnan(found.latest["actor/pg_loss"])
    assert "actor/kl" not in found.latest


@pytest.mark.parametrize(("kind", "told"), [("pipeline", "distil (2 of 3), step 7"), ("opd", "")])
def test_a_pipeline_s_summary_names_the_stage_that_runs_and_its_step(
    open_run: Callable, monkeypatch: pytest.MonkeyPatch, kind: str, told: str
) -> None:
    standing = Standing(phase="rollout", step=7, progress_at_s=0.0, limit_s=None, stage="distil (2 of 3)")
    # Before the run is open: its reporter's thread writes the summary too, and may be within a write.
    monkeypatch.setattr("opd.runs.reporter.PROGRESS", SimpleNamespace(read=lambda: standing))
    with open_run(spec={**SPEC, "kind": kind}) as run:
        run.summary(run.reporter.snapshot())
        assert stored(run).stage == told
        run.finish({"steps": 3})
    assert stored(run).stage == ""


def test_an_attempt_knows_what_the_earlier_ones_have_logged_where_it_has_not(open_run: Callable) -> None:
    with open_run() as run:
        run.log(4, {"opd/loss": 4.0, SCORE: 0.25})
        run.log(5, {"opd/loss": 5.0})
    with open_run() as run:
        run.log(4, {"opd/loss": 0.4, SCORE: 0.75})
    found = stored(run)
    assert (found.outcome, found.attempt, found.last_step) == ("stopped", 2, 5)
    assert found.latest == {"opd/loss": 5.0, SCORE: 0.75}


def test_a_failure_is_told_with_its_reason(open_run: Callable) -> None:
    with pytest.raises(ZeroDivisionError), open_run():
        raise ZeroDivisionError("in the trainer")
    assert stored(open_run()).detail == "ZeroDivisionError: in the trainer"


def test_a_living_run_says_how_it_stands_from_its_start_on(open_run: Callable, until: Callable) -> None:
    with open_run() as run:
        until(lambda: run.local.exists(SUMMARY_FILE))
        assert (stored(run).outcome, stored(run).is_current) == ("", True)


def test_the_newest_sealed_step_is_named(open_run: Callable, save_step: Callable) -> None:
    with open_run() as run:
        for step in (5, 10):
            save_step(run.checkpoints, step)
        run.local.delete("checkpoints/global_step_10/COMPLETE")
    assert stored(run).checkpoint == 5


def test_an_attempt_whose_run_is_another_s_by_now_leaves_the_summary_alone(open_run: Callable, until: Callable) -> None:
    with open_run() as run:
        until(lambda: run.local.exists(SUMMARY_FILE))
        run.local.put_json("attempts/0002/owner.json", {})
        run.local.put_json(SUMMARY_FILE, of(attempt=2))
    assert stored(run).attempt == 2


def test_a_store_that_refuses_the_summary_ends_no_run(open_run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    put = LocalStore._put

    def refuse(store: LocalStore, key: str, data: bytes) -> None:
        if key == SUMMARY_FILE:
            raise StoreUnavailable("away")
        put(store, key, data)

    monkeypatch.setattr(LocalStore, "_put", refuse)
    with open_run() as run:
        assert run.finish({"steps": 1})["steps"] == 1
    assert not run.local.exists(SUMMARY_FILE)


@pytest.mark.parametrize("age_s", [0.0, -2 * DEFAULT_LEASE_TTL_S, 2 * DEFAULT_LEASE_TTL_S])
def test_what_tells_of_no_end_is_believed_for_a_lease_by_both_clocks(
    age_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opd.runs.summary.time.time", lambda: 1000.0)
    assert Summary.from_json(of(time_s=1000.0 - age_s)).is_current is (age_s == 0.0)
    assert Summary.from_json(of(time_s=1000.0 - age_s, outcome="failed")).is_current


@pytest.mark.parametrize(
    "change",
    [
        {"latest": []}, {"latest": {"opd/loss": "high"}}, {"latest": {"opd/loss": 10**400}}, {"attempt": "1"},
        {"attempt": True}, {"last_step": -1}, {"last_step": 2**63}, {"total_steps": 1.5}, {"kind": None}, {"time_s": "now"},
        {"unknown": 1},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_summary_is_refused(change: dict[str, Any]) -> None:
    assert Summary.from_json(of()).to_json() == of()
    with pytest.raises(CorruptRecord, match=r"summary\.json"):
        Summary.from_json(of(**change))
