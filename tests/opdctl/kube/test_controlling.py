"""What may be done to a run in which phase, and what a person is told that it keeps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from opdctl.kube.rayjob import read_job
from opdctl.kube.run import ClusterRun
from opdctl.runs.control import job_end, what_is_saved
from opdctl.runs.record import RunRecord

RECORD = RunRecord(run_id="r", url="u", kind="opd", spec_hash="", state="stopped", detail="", num_attempts=1,
                   last_step=12, total_steps=50)  # fmt: skip


def with_checkpoints(*steps: int, last_step: int = 12) -> RunRecord:
    entries: list[dict[str, Any]] = [{"step": step, "is_complete": True} for step in steps]
    return dataclasses.replace(RECORD, checkpoints=entries, last_step=last_step)


def test_what_is_saved_is_the_newest_checkpoint_and_what_is_computed_again() -> None:
    assert what_is_saved(None, None).startswith("no store shows")
    assert "no checkpoint is complete" in what_is_saved(RECORD, RECORD)
    assert what_is_saved(with_checkpoints(10), with_checkpoints(10, 12)) == (
        "the newest complete checkpoint is step 12, saved by this request (step 10 before)"
    )
    assert what_is_saved(with_checkpoints(10), with_checkpoints(10)) == (
        "the newest complete checkpoint is step 10; steps 11 to 12 will be computed again"
    )


def test_the_end_of_a_run_is_its_rayjobs(rayjob: Callable) -> None:
    def end_of(**status: str) -> Any:
        return job_end(ClusterRun(job=read_job(rayjob(**status))))

    assert end_of(jobDeploymentStatus="Retrying", jobStatus="FAILED") is None
    assert end_of(jobDeploymentStatus="Complete", jobStatus="SUCCEEDED").is_success
    failed = end_of(jobDeploymentStatus="Failed", reason="DeadlineExceeded")
    assert not failed.is_success
    assert "DeadlineExceeded" in failed.reason
    gone = job_end(ClusterRun(job=None))
    assert gone is not None
    assert gone.is_gone
