"""The training command: split, filters, counts and what it leaves on disk."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.raw_layouts import DAPO_SCHEMA, dapo_rows, write_parquet, write_raw

from opd.data import prepare_grpo_data
from opd.data.math_sources import DAPO_PREFIX, DAPO_SUFFIX, Problem, strip_dapo_instruction
from opd.data.prepare_grpo_data import filter_problems, split_training

DAPO_PATH = "DAPO-Math-17k-dedup/distinct-prompts-with-rewards.parquet"


def prepare(data_dir, *options: str) -> None:
    prepare_grpo_data.main(["--data-dir", str(data_dir), *options])


@pytest.mark.slow
def test_the_shuffle_is_the_one_of_hugging_face_datasets():
    datasets = pytest.importorskip("datasets")
    problems = [Problem(row, str(row), f"problem {row}", "1") for row in range(103)]
    train, validation = split_training(problems, num_raw=103, train_ratio=0.8, seed=42, variant="none")
    theirs = datasets.Dataset.from_dict({"row": list(range(103))}).shuffle(seed=42)["row"]
    assert [row["extra_info"]["index"] for row in train + validation] == list(theirs)
    assert len(train) == int(103 * 0.8)


def test_every_filter_drops_its_rows_and_counts_them_once():
    problems = [
        Problem(0, "0", "keep me", "1"),
        Problem(1, "1", "  ", "1"),
        Problem(2, "2", "no answer", ""),
        Problem(3, "3", "Keep  ME", "1"),  # the first one again, but for case and spaces
        Problem(4, "4", "two truths", "1"),
        Problem(5, "5", "two truths", "2"),
        Problem(6, "6", "exam problem", "1"),
        Problem(7, "7", "keep me too", "1"),
    ]
    kept, dropped = filter_problems(problems, benchmark_questions=["Exam problem"])
    assert [problem.row for problem in kept] == [0, 7]
    assert dropped == Counter(
        empty_problem=1,
        empty_answer=1,
        duplicate_problem=1,
        conflicting_answers=2,
        benchmark_problem=1,
    )


def test_the_table_and_the_summary_count_rows_in_and_out(tmp_path, capsys):
    write_raw(tmp_path)
    extra = [
        {"prompt": [{"role": "user", "content": "bare problem"}], "reward_model": {"ground_truth": "1", "style": None}},
        {"prompt": [{"role": "user", "content": ""}], "reward_model": {"ground_truth": "1", "style": "rule"}},
        {
            "prompt": [{"role": "user", "content": "unanswered"}],
            "reward_model": {"ground_truth": None, "style": "rule"},
        },
    ]
    write_parquet(tmp_path / DAPO_PATH, [*dapo_rows(), *extra], DAPO_SCHEMA)
    prepare(tmp_path)
    summary = json.loads((tmp_path / "grpo_processed" / "summary.json").read_text())
    dapo = summary["sets"]["dapo"]
    assert summary["options"] == {"variant": "boxed", "train_ratio": 0.8, "seed": 42}
    assert dapo["num_raw"] == 13
    assert dapo["num_dropped"] == {"empty_answer": 1, "empty_problem": 1}
    assert sum(dapo["num_written"].values()) == 11
    printed = capsys.readouterr().out
    for text in ("13 raw rows", "1 dropped: empty_answer", "1 dropped: empty_problem"):
        assert text in printed


@given(st.text(max_size=40))
def test_stripping_undoes_the_dapo_instruction_around_any_problem(problem):
    assert strip_dapo_instruction(f"{DAPO_PREFIX}{problem}{DAPO_SUFFIX}") == problem.rstrip()
