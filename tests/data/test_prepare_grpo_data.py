"""The training command: split, filters, counts and what it leaves on disk."""

import json
from collections import Counter

import pyarrow.parquet as pq
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


def rows(data_dir, name: str) -> list[dict]:
    return pq.read_table(data_dir / "grpo_processed" / name).to_pylist()


@pytest.mark.slow
def test_the_shuffle_is_the_one_of_hugging_face_datasets():
    datasets = pytest.importorskip("datasets")
    problems = [Problem(row, str(row), f"problem {row}", "1") for row in range(103)]
    split = split_training(problems, num_raw=103, train_ratio=0.8, seed=42, variant="none")
    theirs = datasets.Dataset.from_dict({"row": list(range(103))}).shuffle(seed=42)["row"]
    assert [row["extra_info"]["index"] for row in split.train + split.validation] == list(theirs)
    assert len(split.train) == int(103 * 0.8)


def test_every_filter_drops_its_rows_and_counts_them_once():
    problems = [
        Problem(0, "0", "keep me", "1"),
        Problem(1, "1", "  ", "1"),
        Problem(2, "2", "no answer", ""),
        Problem(3, "3", "Keep  ME", "1"),  # the first one again, but for case and spaces
        Problem(4, "4", "two truths", "1"),
        Problem(5, "5", "two truths", "2"),
        Problem(6, "6", "exam problem", "1"),
        Problem(7, "7", "endless " * 50, "1"),
        Problem(8, "8", "keep me too", "1"),
    ]
    filtered = filter_problems(
        problems, benchmark_questions=["Exam problem"], is_too_long=lambda problem: len(problem.question) > 100
    )
    assert [problem.row for problem in filtered.kept] == [0, 8]
    assert filtered.dropped == Counter(
        empty_problem=1,
        empty_answer=1,
        duplicate_problem=1,
        conflicting_answers=2,
        benchmark_problem=1,
        prompt_too_long=1,
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
    assert dapo["notes"] == ["3 prompts carry no DAPO instruction and were taken as they are"]
    printed = capsys.readouterr().out
    for text in (
        "13 raw rows",
        "1 dropped: empty_answer",
        "1 dropped: empty_problem",
        "note: dapo: 3 prompts carry no DAPO instruction",
    ):
        assert text in printed


def test_prompts_beyond_the_length_limit_are_dropped_by_the_tokenizers_own_count(tmp_path):
    write_raw(tmp_path)
    model = word_tokenizer(tmp_path / "model")
    # The template adds two words of its own: two words make four tokens, five make seven.
    short = {"prompt": "two words", "reward_model": {"ground_truth": "1", "style": "rule"}}
    long = {"prompt": "this one has five words", "reward_model": {"ground_truth": "1", "style": "rule"}}
    write_parquet(tmp_path / DAPO_PATH, [short, long, {**short, "prompt": "other words"}])
    prepare(
        tmp_path, "--sets", "dapo", "--variant", "none", "--tokenizer", str(model), "--max-prompt-length", "4",
        "--train-ratio", "0.5",
    )  # fmt: skip
    summary = json.loads((tmp_path / "grpo_processed" / "summary.json").read_text())
    assert summary["sets"]["dapo"]["num_dropped"] == {"prompt_too_long": 1}
    prompts = [
        row["prompt"][0]["content"] for name in ("train", "val_dapo") for row in rows(tmp_path, f"{name}.parquet")
    ]
    assert sorted(prompts) == ["other words", "two words"]


def word_tokenizer(path):
    """A real fast tokenizer whose tokens are words, with a template of `<user> words <end>`."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "<user>": 1, "<end>": 2}, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")
    fast.chat_template = "{% for message in messages %}<user> {{ message['content'] }} <end>{% endfor %}"
    fast.save_pretrained(path)
    return path


@given(st.text(max_size=40))
def test_stripping_undoes_the_dapo_instruction_around_any_problem(problem):
    assert strip_dapo_instruction(f"{DAPO_PREFIX}{problem}{DAPO_SUFFIX}").problem == problem.rstrip()
