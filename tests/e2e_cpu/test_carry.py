"""A run whose answers continue over its updates ends in the same bits, also killed and resumed; no row is lost or trained on twice."""

import json

import pytest
from tests.e2e_cpu.carried import NUM_ROWS, NUM_STEPS, SETS, must_follow, rows_of
from tests.e2e_cpu.runs import Outcome, kill_and_resume, must_end_alike, run

from opd.rollout.carry import CHECKPOINT_FILE

_SAVED = (2, 4, 6, 8)
# The validation in mid-run finds rows on their way.
_SETS = (*SETS, f"trainer.total_steps={NUM_STEPS}", "trainer.save_freq=2", "trainer.test_freq=3")
_METRICS = (
    "opd/loss",
    "opd/num_tokens",
    "response_length/mean",
    "rollout/age_mean",
    "rollout/age_max",
    "rollout/carried_share",
    "rollout/rounds_waited",
)


def _carried(outcome: Outcome, step: int) -> dict:
    return json.loads((outcome.run_dir / "checkpoints" / f"global_step_{step}" / CHECKPOINT_FILE).read_text())


def _must_be_alike(outcome: Outcome, whole: Outcome) -> None:
    assert [row["training/global_step"] for row in outcome.steps] == list(range(1, NUM_STEPS + 1))
    for mine, theirs in zip(outcome.steps, whole.steps, strict=True):
        assert {name: mine[name] for name in _METRICS} == {name: theirs[name] for name in _METRICS}
    must_end_alike(outcome, whole, NUM_STEPS)
    assert _carried(outcome, NUM_STEPS) == _carried(whole, NUM_STEPS), "tokens, versions and the place in the data"


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Outcome:
    return run(tmp_path_factory.mktemp("whole"), "opd", *_SETS).must_be_clean()


def test_killed_and_resumed_it_ends_as_the_uninterrupted_run(tmp_path, whole):
    _must_be_alike(kill_and_resume(tmp_path, "opd", *_SETS, behind=2), whole)


def test_two_rollout_processes_that_answer_in_any_order_make_the_same_run(tmp_path, whole):
    _must_be_alike(run(tmp_path, "opd", *_SETS, "rollout.num_agent_workers=2").must_be_clean(), whole)


def test_every_row_is_trained_on_once_and_every_token_has_the_version_that_made_it(whole):
    assert max(row["rollout/age_max"] for row in whole.steps) > 1
    assert max(row["rollout/carried_share"] for row in whole.steps) > 0.2

    states = {step: _carried(whole, step) for step in _SAVED}
    must_follow(states, rows_per_step=NUM_ROWS)
    assert any(len(row.pieces) > 1 for state in states.values() for row in rows_of(state).values())
