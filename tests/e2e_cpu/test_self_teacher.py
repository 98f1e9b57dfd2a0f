"""A student taught by itself after a prompt with the answer, end to end: refreshed weights, a kill, the resume to the same bits."""

from pathlib import Path

import pytest
from tests.e2e_cpu.runs import Outcome, kill_and_resume, must_end_alike, run

_SPEC, _STEPS = "opd-self", 6


def _shard(outcome: Outcome, name: str, step: int = _STEPS) -> Path:
    return outcome.run_dir / "checkpoints" / f"global_step_{step}" / "actor" / f"{name}_world_size_1_rank_0.pt"


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Outcome:
    return run(tmp_path_factory.mktemp("whole"), _SPEC).must_be_clean()


def test_the_student_is_its_own_refreshed_teacher_behind_a_longer_prompt(whole):
    assert [row["opd/teacher_step"] for row in whole.steps] == [0, 0, 2, 2, 4, 4]
    for row in whole.steps:
        # The student's prompts have 14 tokens; `(`, three digits and `)` are five more.
        assert row["opd/teacher_prompt_length/mean"] == row["opd/teacher_prompt_length/max"] == 19
        assert row["data/num_teacher_overlong_dropped"] == 0
    assert whole.steps[0]["opd/divergence"] > 1e-3, "it reads another prompt than the student"
    assert _shard(whole, "teacher", 3).exists(), "after step 3 the teacher is the student of step 2"
    assert not _shard(whole, "teacher").exists(), "after step 6 it is the student of this very checkpoint"


def test_killed_and_resumed_it_ends_in_the_uninterrupted_runs_weights(tmp_path, whole):
    resumed = kill_and_resume(tmp_path, _SPEC, behind=3)
    assert _shard(resumed, "teacher", 3).exists()
    assert not _shard(resumed, "teacher").exists()
    assert [row["opd/teacher_step"] for row in resumed.steps] == [0, 0, 2, 2, 4, 4]
    must_end_alike(resumed, whole, _STEPS)
