"""What a run says of itself in its ConfigMap: read with care, since whoever may write there may have written it."""

from __future__ import annotations

import pytest

from opd.runs.headline import Score
from opdctl.kube.notice import Notice, read_notice
from opdctl.kube.rayjob import read_job
from opdctl.runs.overview import rows
from opdctl.runs.record import RunRecord
from opdctl.runs.view import notice_line

DATA = {
    "attempt": "2", "phase": "update", "step": "7", "totalSteps": "40", "etaSeconds": "600", "score": "0.625", "scoreIsShare": "true", "loss": "0.5",
    "progressAt": "2026-11-22T10:00:00Z", "updatedAt": "2026-11-22T10:00:05Z",
}  # fmt: skip


@pytest.mark.parametrize("tree", [None, {}, {"data": None}, {"data": {}}, {"data": {"step": "3", "updatedAt": "soon"}}])
def test_a_run_that_has_said_nothing_has_no_notice(tree: dict | None) -> None:
    assert read_notice(tree) is None


def test_a_notice_is_numbers_and_times() -> None:
    found = read_notice({"data": DATA})
    assert found is not None
    assert (found.attempt, found.phase, found.step, found.total_steps) == (2, "update", 7, 40)
    assert (found.eta_s, found.score, found.loss) == (600.0, (0.625, True), 0.5)
    assert found.updated_at_s - (found.progress_at_s or 0) == 5.0


def test_only_a_share_is_told_in_percent() -> None:
    lines = [
        notice_line(found)
        for data in (DATA, DATA | {"scoreIsShare": "false"})
        if (found := read_notice({"data": data}))
    ]
    assert ["score 62.5 %" in lines[0], "score 0.625," in lines[1]] == [True, True]


def test_a_stage_of_a_pipeline_stands_before_its_step_and_in_a_list() -> None:
    found = read_notice({"data": DATA | {"stage": "distil (2 of 3)"}})
    assert found is not None
    assert notice_line(found).startswith("distil (2 of 3): update at step 7/40, ")
    job = read_job({"metadata": {"name": "r"}, "spec": {}, "status": {"jobDeploymentStatus": "Running"}})
    assert rows([("opd", job, 8)], [], {("opd", "r"): found})[0].stage == "distil (2 of 3), step 7"


@pytest.mark.parametrize("text", ["", "seven", "inf", "nan", "[1]"])
def test_a_field_that_is_no_number_is_left_out_and_the_rest_is_read(text: str) -> None:
    found = read_notice({"data": DATA | {"step": text, "score": text, "phase": "\x1b[31mred\n"}})
    assert found is not None
    assert (found.step, found.score, found.loss) == (None, None, 0.5)
    assert "\x1b" not in notice_line(found)
    assert "\n" not in notice_line(found)


def test_a_run_whose_store_is_away_has_its_step_and_score_from_its_notice_and_else_from_its_record() -> None:
    job = read_job({"metadata": {"name": "r"}, "spec": {}, "status": {"jobDeploymentStatus": "Running"}})
    notice = Notice(
        phase="update", updated_at_s=1.0, step=7, total_steps=40, score=Score(0.5, is_share=False), attempt=2
    )
    [row] = rows([("opd", job, 8)], [], {("opd", "r"): notice})
    assert (row.run, row.gpus, row.step, row.total_steps, row.score, row.attempts) == ("r", 8, 7, 40, (0.5, False), 2)
    record = RunRecord(run_id="r", url="s3://b/r", kind="opd", spec_hash="", state="running", detail="", num_attempts=3,
                       last_step=9, total_steps=40)  # fmt: skip
    assert rows([("opd", job, 8)], [record], {("opd", "r"): notice})[0].step == 9
    assert rows([("opd", job, 8)], [], {("other", "r"): notice})[0].step is None
