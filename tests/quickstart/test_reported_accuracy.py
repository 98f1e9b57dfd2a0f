"""The accuracies that the quickstart reports, against plain transformers."""

from __future__ import annotations

import pytest
from tests.quickstart.plain_transformers import greedy_accuracy

from opd.data.toy import STUDENT_DIR, TEACHER_DIR
from opd.data.toy.task import write_parquet
from opd.quickstart.toy import folder_accuracies


@pytest.mark.slow
def test_plain_transformers_on_the_held_out_file_give_the_accuracies_of_the_quickstarts_table(tmp_path):
    _, heldout = write_parquet(tmp_path, seed=1)
    reported, num_problems = folder_accuracies({"student": STUDENT_DIR, "teacher": TEACHER_DIR})
    found = {
        name: greedy_accuracy(folder, heldout) for name, folder in (("student", STUDENT_DIR), ("teacher", TEACHER_DIR))
    }
    assert found == reported
    assert num_problems > 400
    assert found["student"] < 0.35 < 0.95 <= found["teacher"]
