"""Reading the published layouts: ground truths come out right, and every fault names file, row and column."""

import os

import pyarrow as pa
import pytest
from tests.data.raw_layouts import (
    AIME24_PROBLEMS,
    AIME25_PROBLEMS,
    MATH500_PROBLEMS,
    aime24_capitalised_rows,
    aime24_lower_case_rows,
    aime24_solution_only_rows,
    dapo_rows,
    write_json_lines,
    write_parquet,
    write_raw,
)

from opd.data import process_eval_data
from opd.data.math_sources import read_aime24, read_aime25, read_dapo, read_math500
from opd.data.raw_files import RawFileError
from opd.data.rows import write_files

AIME24_TRUTHS = [str(int(answer)) for *_, answer in AIME24_PROBLEMS]


# Defect 7 of the original: the first box of the solution is not the answer in five of these rows.
@pytest.mark.parametrize("layout", [aime24_lower_case_rows, aime24_capitalised_rows, aime24_solution_only_rows])
def test_aime24_ground_truths_are_right_in_every_published_layout(tmp_path, layout):
    problems, notes = read_aime24(write_parquet(tmp_path / "aime.parquet", layout()))
    assert [problem.answer for problem in problems] == AIME24_TRUTHS
    assert [problem.question for problem in problems] == [problem for _, problem, _, _ in AIME24_PROBLEMS]
    assert notes == []


def test_the_first_box_is_not_the_answer_in_five_rows_of_the_fixture():
    first_boxes = [solution.split("\\boxed{", 1)[1].split("}", 1)[0] for _, _, solution, _ in AIME24_PROBLEMS]
    right = [box == truth for box, truth in zip(first_boxes, AIME24_TRUTHS, strict=True)]
    assert right == [False] * 5 + [True] * 2


def test_the_two_layouts_keep_their_own_problem_ids(tmp_path):
    lower = read_aime24(write_parquet(tmp_path / "lower.parquet", aime24_lower_case_rows())).problems
    capitalised = read_aime24(write_parquet(tmp_path / "capitalised.parquet", aime24_capitalised_rows())).problems
    assert lower[0].problem_id == "60"
    assert capitalised[0].problem_id == "2024-I-60"


def test_the_answer_column_wins_over_the_solution_and_the_contradiction_is_noted(tmp_path):
    rows = aime24_lower_case_rows()
    rows[0]["answer"] = "205"
    problems, notes = read_aime24(write_parquet(tmp_path / "aime.parquet", rows))
    assert problems[0].answer == "205"
    assert notes == ["1 solutions box something else than the answer column, which was taken"]


def test_aime25_keeps_its_answers_as_text_but_for_leading_zeros(tmp_path):
    problems, _ = read_aime25(write_json_lines(tmp_path / "train.jsonl", AIME25_PROBLEMS))
    assert [problem.answer for problem in problems] == ["70", "336^\\circ", "16"]


def test_math500_keeps_its_answers_as_text(tmp_path):
    problems, _ = read_math500(write_json_lines(tmp_path / "test.jsonl", MATH500_PROBLEMS))
    assert [problem.answer for problem in problems] == [row["answer"] for row in MATH500_PROBLEMS]
    assert problems[0].problem_id == "test/precalculus/807.json"


@pytest.mark.parametrize(("answer", "truth"), [(70, "70"), (70.0, "70"), (" 70 ", "70")])
def test_an_answer_may_be_a_number(tmp_path, answer, truth):
    problems, _ = read_aime25(write_json_lines(tmp_path / "a.jsonl", [{"problem": "p", "answer": answer}]))
    assert problems[0].answer == truth


def test_dapo_prompts_may_be_plain_texts(tmp_path):
    rows = [{"prompt": "bare", "reward_model": {"ground_truth": 3, "style": "rule"}}]
    problems, notes = read_dapo(write_parquet(tmp_path / "dapo.parquet", rows))
    assert (problems[0].question, problems[0].answer) == ("bare", "3")
    assert notes == ["1 prompts carry no DAPO instruction and were taken as they are"]


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


def test_a_parquet_file_in_no_published_layout_is_refused_with_the_layouts(tmp_path):
    path = write_parquet(tmp_path / "aime.parquet", [{"question": "q", "answer": "1"}])
    with pytest.raises(RawFileError) as error:
        read_aime24(path)
    assert "column 'problem' is missing; the published layout has (problem, solution) or (answer, problem) or" in str(
        error.value
    )
    assert "this row has (answer, question)" in str(error.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"problem": "p", "answer": "1"}\n\n{"problem": \n', "line 3, character 13: not JSON"),
        (b'{"problem": "p", "answer": "1"}\n[1]\n', "line 2: must be a JSON object, found list"),
        (b'{"problem": "\xff"}\n', "not UTF-8 text"),
        (b"", "the file has no rows"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git-lfs pointer"),
    ],
)
def test_a_broken_json_lines_file_is_named(tmp_path, content, says):
    path = tmp_path / "train.jsonl"
    path.write_bytes(content)
    with pytest.raises(RawFileError) as error:
        read_aime25(path)
    assert str(error.value).startswith(f"{path}: ")
    assert says in str(error.value)


def test_a_broken_parquet_file_is_named(tmp_path):
    path = tmp_path / "aime.parquet"
    path.write_bytes(b"PAR1 and then nothing of use")
    with pytest.raises(RawFileError, match="not a readable Parquet file"):
        read_aime24(path)


def test_a_missing_file_ends_the_command_with_where_to_get_it(tmp_path, capsys):
    write_raw(tmp_path)
    (tmp_path / "MATH-500/test.jsonl").unlink()
    with pytest.raises(SystemExit) as exit_info:
        process_eval_data.main(["--data-dir", str(tmp_path)])
    assert exit_info.value.code == 2
    message = capsys.readouterr().err
    assert f"error: {tmp_path}/MATH-500/test.jsonl: no such file. Get it from Hugging Face data set" in message
    assert "--sets" in message
    assert not (tmp_path / "eval_processed").exists()


def test_the_other_sets_can_be_prepared_without_it(tmp_path):
    write_raw(tmp_path)
    (tmp_path / "MATH-500/test.jsonl").unlink()
    process_eval_data.main(["--data-dir", str(tmp_path), "--sets", "aime24", "aime25", "--variants", "boxed"])
    made = sorted(str(path.relative_to(tmp_path / "eval_processed")) for path in tmp_path.rglob("val_*.parquet"))
    assert made == ["boxed/val_aime24.parquet", "boxed/val_aime25.parquet"]


@pytest.mark.parametrize("module", ["prepare_grpo_data", "process_eval_data"])
def test_help_shows_an_example(module, capsys):
    command = __import__(f"opd.data.{module}", fromlist=["main"])
    with pytest.raises(SystemExit) as exit_info:
        command.main(["--help"])
    assert exit_info.value.code == 0
    printed = capsys.readouterr().out
    assert f"example:\n  python -m opd.data.{module} --data-dir data" in printed


def test_an_output_that_cannot_be_completed_leaves_the_old_files_alone(tmp_path):
    good, bad = tmp_path / "a.parquet", tmp_path / "b.parquet"
    write_files({}, {good: "old"})
    with pytest.raises(pa.ArrowInvalid):
        write_files({good: [], bad: [{"extra_info": {"index": "not a number"}}]}, {})
    assert good.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.parquet"]
