"""Two teachers end to end, each with rows of its own by a column of the data: metrics, a kill, and the resume to the same bits."""

from __future__ import annotations

import pytest
from tests.e2e_cpu.runs import Outcome, run
from tests.remainders import write_remainders

_SPEC, _STEPS = "opd-teachers", 6
_TEACHERS = ("carries", "drops")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Outcome:
    folder = tmp_path_factory.mktemp("whole")
    write_remainders(folder, seed=3, num_train=48)
    return run(folder, _SPEC).must_be_clean()


def test_each_row_is_read_by_its_own_teacher_and_each_teacher_has_its_metrics(whole):
    for row in whole.steps:
        of = {
            name: [row[f"opd/teacher/{name}/{what}"] for what in ("divergence", "tokens", "rows")] for name in _TEACHERS
        }
        assert sum(tokens for _, tokens, _ in of.values()) == row["opd/num_tokens"]
        assert sum(rows for *_, rows in of.values()) == 16
        whole_sum = sum(divergence * tokens for divergence, tokens, _ in of.values())
        assert whole_sum == pytest.approx(row["opd/divergence"] * row["opd/num_tokens"])
    assert whole.steps[0]["opd/teacher/drops/divergence"] < 1e-5, (
        "the student is its own teacher until the first update"
    )
    assert whole.steps[0]["opd/teacher/carries/divergence"] > 0.01
    assert all(sum(row[f"opd/teacher/{name}/rows"] for row in whole.steps) > 12 for name in _TEACHERS)
