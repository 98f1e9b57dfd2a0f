"""Reading the published layouts: ground truths come out right, and every fault names file, row and column."""

import os

import pyarrow as pa
import pytest
from tests.data.raw_layouts import (
    AIME24_PROBLEMS,
    AIME25_PROBLEMS,
    aime24_capitalised_rows,
    aime24_lower_case_rows,
    aime24_solution_only_rows,
    dapo_rows,
    write_json_lines,
    write_parquet,
)

from opd.data.math_sources import read_aime24, read_aime25, read_dapo
from opd.data.raw_files import RawFileError
from opd.data.rows import write_files

AIME24_TRUTHS = [str(int(answer)) for *_, answer in AIME24_PROBLEMS]


# Defect 7 of the original: the first box of the solution is not the answer in five of these rows.
@pytest.mark.parametrize("layout", [aime24_lower_case_rows, aime24_capitalised_rows, aime24_solution_only_rows])
def test_aime24_ground_truths_are_right_in_every_published_layout(tmp_path, layout):
    problems = read_aime24(write_parquet(tmp_path / "aime.parquet", layout()))
    assert [problem.answer for problem in problems] == AIME24_TRUTHS
    assert [problem.question for problem in problems] == [problem for _, problem, _, _ in AIME24_PROBLEMS]


def test_the_answer_column_wins_over_the_solution(tmp_path):
    rows = aime24_lower_case_rows()
    rows[0]["answer"] = "205"
    assert read_aime24(write_parquet(tmp_path / "aime.parquet", rows))[0].answer == "205"


def faulty(rows: list[dict], row: int, **changes) -> list[dict]:
    changed = [dict(item) for item in rows]
    for column, value in changes.items():
        if value is ...:
            del changed[row][column]
        else:
            changed[row][column] = value
    return changed


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (faulty(AIME25_PROBLEMS, 1, answer=...), "row 2: column 'answer' is missing"),
        (
            faulty(AIME25_PROBLEMS, 1, answer=None),
            "row 2, column 'answer': must be a text that is not empty, found None",
        ),
        (faulty(AIME25_PROBLEMS, 2, problem=" "), "row 3, column 'problem': must be a text that is not empty"),
        (faulty(AIME25_PROBLEMS, 0, answer=[70]), "row 1, column 'answer': must be a text"),
        (faulty(AIME25_PROBLEMS, 0, answer=True), "row 1, column 'answer': must be a text"),
        (faulty(AIME25_PROBLEMS, 0, answer=0.5), "row 1, column 'answer': must be a text"),
    ],
)
def test_a_malformed_json_row_is_named(tmp_path, rows, says):
    path = write_json_lines(tmp_path / "train.jsonl", rows)
    with pytest.raises(RawFileError) as error:
        read_aime25(path)
    assert str(error.value).startswith(f"{path}: ")
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("answer", "solution", "says"),
    [
        ("1000", "", "row 3, column 'answer': must be a whole number from 0 to 999, found '1000'"),
        ("3.5", "", "row 3, column 'answer': must be a whole number"),
        (None, "", "row 3, column 'answer': must be a text that is not empty"),
        (..., "no box here", "row 3, column 'solution': must end in a box with a whole number from 0 to 999"),
        (..., "$\\boxed{x}$", "row 3, column 'solution': must end in a box with a whole number"),
    ],
)
def test_an_aime24_answer_that_is_none_is_named(tmp_path, answer, solution, says):
    rows = aime24_solution_only_rows() if answer is ... else aime24_lower_case_rows()
    changes = {"solution": solution} if answer is ... else {"answer": answer}
    path = write_parquet(tmp_path / "aime.parquet", faulty(rows, 2, **changes))
    with pytest.raises(RawFileError) as error:
        read_aime24(path)
    assert str(error.value).startswith(f"{path}: {says}")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"prompt": [{"role": "system", "content": "x"}]}, "row 2, column 'prompt': must be a text or a list of one"),
        ({"prompt": []}, "row 2, column 'prompt': must be a text or a list of one"),
        ({"prompt": None}, "row 2, column 'prompt': must be a text or a list of one"),
        ({"reward_model": None}, "row 2, column 'reward_model': must be an object with ground_truth"),
    ],
)
def test_a_malformed_dapo_row_is_named(tmp_path, changes, says):
    path = write_parquet(tmp_path / "dapo.parquet", faulty(dapo_rows(), 1, **changes))
    with pytest.raises(RawFileError) as error:
        read_dapo(path)
    assert says in str(error.value)


def test_an_output_that_cannot_be_completed_leaves_the_old_files_alone(tmp_path):
    good, bad = tmp_path / "a.parquet", tmp_path / "b.parquet"
    write_files({}, {good: "old"})
    with pytest.raises(pa.ArrowInvalid):
        write_files({good: [], bad: [{"extra_info": {"index": "not a number"}}]}, {})
    assert good.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.parquet"]
