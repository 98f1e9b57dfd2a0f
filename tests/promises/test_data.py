"""Both preparation commands: from the raw files of the original's layout to its Parquet files and columns."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.promises.commands import python, run

PREFIX = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
SUFFIX = '\n\nRemember to put your answer on its own line after "Answer:".'
BOXED = "\n\nLet's think step by step and output the final answer within \\boxed{}."
DAPO = [(f"What is ${number}+{number}$?", str(2 * number)) for number in range(10)]
AIME24 = [
    ("A clock.", "First $\\boxed{30}$, hence $\\boxed{204}$.", "204"),
    ("A lattice.", "It is $\\boxed{025}$.", "025"),
]
AIME25 = [("Find the sum of all bases.", "70")]
MATH500 = [("Convert the point.", "\\left( 3, \\frac{\\pi}{2} \\right)")]
COLUMNS = ["data_source", "prompt", "ability", "reward_model", "extra_info"]
BENCHMARKS = {
    "math500": ("math", MATH500),
    "aime24": ("aime24", [(question, answer) for question, _, answer in AIME24]),
    "aime25": ("aime25", AIME25),
}


def write_raw(data: Path) -> None:
    """Write the four raw files where the seed expects them."""
    tables: dict[str, list[dict[str, Any]]] = {
        "DAPO-Math-17k-dedup/distinct-prompts-with-rewards.parquet": [
            {"prompt": [{"content": PREFIX + question + SUFFIX, "role": "user"}],
             "reward_model": {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"}}
            for question, answer in DAPO
        ],
        "AIME_2024/aime_2024_problems.parquet": [
            {"ID": f"2024-I-{number}", "Problem": question, "Solution": solution, "Answer": int(answer)}
            for number, (question, solution, answer) in enumerate(AIME24, start=1)
        ],
        "AIME_2025/train.jsonl": [{"problem": question, "answer": answer, "id": "0"} for question, answer in AIME25],
        "MATH-500/test.jsonl": [
            {"problem": question, "solution": "", "answer": answer, "subject": "Precalculus", "level": 2, "unique_id": "test/1"}
            for question, answer in MATH500
        ],
    }  # fmt: skip
    for name, rows in tables.items():
        path = data / name
        path.parent.mkdir(parents=True)
        if path.suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with `data/`, after both commands without options and GRPO's once more by variables."""
    folder = tmp_path_factory.mktemp("work")
    write_raw(folder / "data")
    by_variables = {"DATA_DIR": str(folder / "data"), "DAPO_TRAIN_RATIO": "0.5"}
    for words, variables in (
        (python("opd.data.prepare_grpo_data"), {}),
        (python("opd.data.process_eval_data"), {}),
        (python("opd.data.prepare_grpo_data", "--variant", "dapo", "--output-dir", "asked"), by_variables),
    ):
        done = run(words, cwd=folder, variables=variables)
        assert done.returncode == 0, done.stderr
    return folder


def rows(path: Path) -> list[dict[str, Any]]:
    return pq.read_table(path).to_pylist()


def question(row: dict[str, Any]) -> str:
    [message] = row["prompt"]
    assert message["role"] == "user"
    return message["content"]


def answers(table: list[dict[str, Any]]) -> list[str]:
    return [row["reward_model"]["ground_truth"] for row in table]


def test_the_commands_write_the_seeds_files(folder):
    names = {str(path.relative_to(folder / "data")) for path in (folder / "data").glob("*_processed/**/*.parquet")}
    grpo = {
        f"grpo_processed/{name}.parquet" for name in ("train", "val_dapo", "val_aime24", "val_aime25", "val_math500")
    }
    evaluated = {
        f"eval_processed/{variant}/val_{name}.parquet" for variant in ("boxed", "dapo", "none") for name in BENCHMARKS
    }
    assert names == grpo | evaluated


def test_every_file_has_the_originals_columns(folder):
    for path in (folder / "data").glob("*_processed/**/*.parquet"):
        table = pq.read_table(path)
        assert table.column_names == COLUMNS, path
        for row in table.to_pylist():
            assert row["ability"] == "math"
            assert {"style", "ground_truth"} <= row["reward_model"].keys()
            assert isinstance(row["extra_info"]["index"], int)


def test_training_and_validation_prompts_are_the_dapo_problems_split_80_to_20(folder):
    train, val = (rows(folder / f"data/grpo_processed/{name}.parquet") for name in ("train", "val_dapo"))
    assert (len(train), len(val)) == (8, 2)
    assert sorted(question(row) for row in train + val) == sorted(text + BOXED for text, _ in DAPO)
    expected = {text + BOXED: answer for text, answer in DAPO}
    assert all(expected[question(row)] == row["reward_model"]["ground_truth"] for row in train + val)
    assert {row["data_source"] for row in train + val} == {"math_dapo"}
    assert [question(row) for row in train] != [text + BOXED for text, _ in DAPO[:8]], "the split is shuffled"


@pytest.mark.parametrize("name", BENCHMARKS)
def test_benchmarks_keep_every_problem_with_its_answer(folder, name):
    source, problems = BENCHMARKS[name]
    for path in (f"grpo_processed/val_{name}.parquet", f"eval_processed/boxed/val_{name}.parquet"):
        table = rows(folder / "data" / path)
        assert {row["data_source"] for row in table} == {source}
        assert [question(row) for row in table] == [text + BOXED for text, _ in problems]
        assert [answer.lstrip("0") for answer in answers(table)] == [answer.lstrip("0") for _, answer in problems]


def test_a_variant_decides_what_the_prompt_asks_for(folder):
    for name, (_, problems) in BENCHMARKS.items():
        dapo, none = (
            rows(folder / f"data/eval_processed/{variant}/val_{name}.parquet") for variant in ("dapo", "none")
        )
        assert [question(row) for row in dapo] == [PREFIX + text + SUFFIX for text, _ in problems]
        assert [question(row) for row in none] == [text for text, _ in problems]


def test_data_dir_and_dapo_train_ratio_are_read_by_the_command(folder):
    train, val = (rows(folder / f"asked/{name}.parquet") for name in ("train", "val_dapo"))
    assert (len(train), len(val)) == (5, 5)
    assert {question(row) for row in train + val} == {PREFIX + text + SUFFIX for text, _ in DAPO}


def test_a_raw_file_that_is_missing_is_named_and_nothing_is_written(tmp_path):
    write_raw(tmp_path / "data")
    (tmp_path / "data/AIME_2025/train.jsonl").unlink()
    done = run(python("opd.data.process_eval_data"), cwd=tmp_path)
    assert done.returncode == 2
    assert "AIME_2025/train.jsonl" in done.stderr
    assert not (tmp_path / "data/eval_processed").exists()
