"""Reward and divergence in one update end to end: the parts' metrics, a kill, and the resume to the same bits."""

import pytest
from tests.e2e_cpu.runs import Outcome, run

_SPEC, _STEPS = "opd-reward", 6


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Outcome:
    return run(tmp_path_factory.mktemp("whole"), _SPEC).must_be_clean()


def test_each_step_has_the_parts_of_its_loss(whole):
    steps = whole.steps
    assert [row["opd/divergence_weight"] for row in steps] == [0.25, 0.25, 0.0, 0.0, 0.0, 0.0]
    assert [row["opd/policy_weight"] for row in steps] == [0.5, 0.5, 1.0, 1.0, 1.0, 1.0]
    for row in steps:
        assert row["opd/num_updates"] == 2
        assert row["opd/divergence"] > 0, "it is measured also where it is not trained on"
        parts = row["opd/divergence_weight"] * row["opd/divergence"] + row["opd/policy_weight"] * row["opd/policy_loss"]
        assert row["opd/loss"] == pytest.approx(parts, rel=1e-5)
        assert row["opd/policy_drift"] != 0, "the second update's student is not the one that answered"
        assert row["opd/advantage_min"] <= 0 <= row["opd/advantage_max"]
    assert any(row["opd/advantage_zero"] < 1 for row in steps)
