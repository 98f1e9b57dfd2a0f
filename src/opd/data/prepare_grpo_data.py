"""`python -m opd.data.prepare_grpo_data`: the training file, its validation split and the three benchmarks."""

import argparse
import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from opd.data import command_line
from opd.data.math_sources import BENCHMARKS, DAPO, VARIANTS, Problem, Problems, Variant
from opd.data.raw_files import RawFileError
from opd.data.rows import Row, Split, benchmark_rows, prompt_row, write_files
from opd.experiment.sections import Data

DropReason = Literal[
    "empty_problem", "empty_answer", "conflicting_answers", "duplicate_problem", "benchmark_problem", "prompt_too_long"
]


class Filtered(NamedTuple):
    """Kept problems in their order, and drops by reason."""

    kept: list[Problem]
    dropped: Counter[str]
    """By `DropReason`."""


def normalised(question: str) -> str:
    """Return a question's identity: its text up to Unicode form, case and white space."""
    return " ".join(unicodedata.normalize("NFKC", question).casefold().split())


def filter_problems(
    problems: Sequence[Problem],
    *,
    benchmark_questions: Iterable[str] = (),
    is_too_long: Callable[[Problem], bool] | None = None,
) -> Filtered:
    """Drop problems that teach nothing or that validation asks; the first rule that applies is counted.

    Args:
        problems: in the order of the raw file.
        benchmark_questions: questions of the validation sets, which must not be trained on.
        is_too_long: says of a problem that its prompt exceeds the length limit.
    """
    benchmark = {normalised(question) for question in benchmark_questions}
    answers: dict[str, set[str]] = {}
    for problem in problems:
        if problem.answer:
            answers.setdefault(normalised(problem.question), set()).add(problem.answer)
    kept: list[Problem] = []
    dropped: Counter[str] = Counter()
    seen: set[str] = set()
    for problem in problems:
        identity = normalised(problem.question)
        reason = _drop_reason(problem, identity, answers, seen, benchmark)
        if reason is None and is_too_long is not None and is_too_long(problem):
            reason = "prompt_too_long"
        if reason is None:
            kept.append(problem)
        else:
            dropped[reason] += 1
        seen.add(identity)
    return Filtered(kept, dropped)


def _drop_reason(
    problem: Problem, identity: str, answers: dict[str, set[str]], seen: set[str], benchmark: set[str]
) -> DropReason | None:
    if not identity:
        return "empty_problem"
    if not problem.answer:
        return "empty_answer"
    if len(answers[identity]) > 1:
        return "conflicting_answers"
    if identity in seen:
        return "duplicate_problem"
    if identity in benchmark:
        return "benchmark_problem"
    return None


TRAIN_FILE = "train.parquet"
VALIDATION_FILE = "val_dapo.parquet"
DEFAULT_TRAIN_RATIO = Data.model_fields["train_ratio"].default

EXAMPLE = """\
  python -m opd.data.prepare_grpo_data --data-dir data
    reads   data/DAPO-Math-17k-dedup/distinct-prompts-with-rewards.parquet, data/AIME_2024/aime_2024_problems.parquet,
            data/AIME_2025/train.jsonl, data/MATH-500/test.jsonl
    writes  data/grpo_processed/{train,val_dapo,val_aime24,val_aime25,val_math500}.parquet
  python -m opd.data.prepare_grpo_data --sets dapo --variant dapo --tokenizer MODEL --max-prompt-length 2048
    only DAPO, asking for an `Answer:` line (reward math_dapo), without prompts beyond 2048 of MODEL's tokens"""


class TrainingSplit(NamedTuple):
    """The two sides of the DAPO prompts."""

    train: list[Row]
    validation: list[Row]


def split_training(
    problems: Iterable[Problem], *, num_raw: int, train_ratio: float, seed: int, variant: Variant
) -> TrainingSplit:
    """Shuffle and split the problems, as rows.

    The permutation is drawn over the *raw* rows, so that a dropped row moves no other row to the other side. It is
    the one that Hugging Face's `Dataset.shuffle(seed)` draws.

    Args:
        problems: those that passed the filters.
        num_raw: rows of the raw file.
        train_ratio: share of the raw rows on the training side, in (0, 1).
    """
    by_row = {problem.row: problem for problem in problems}
    permutation = np.random.default_rng(seed).permutation(num_raw).tolist()
    num_train = int(num_raw * train_ratio)

    def rows_of(side: list[int], split: Split) -> list[Row]:
        return [
            prompt_row(by_row[row], data_source=DAPO.data_source, split=split, variant=variant)
            for row in side
            if row in by_row
        ]

    return TrainingSplit(rows_of(permutation[:num_train], "train"), rows_of(permutation[num_train:], "val"))


def prepare(arguments: argparse.Namespace) -> None:
    """Read, filter, split and write as the command line says."""
    sources = [source for source in (DAPO, *BENCHMARKS) if source.name in arguments.sets]
    problems = command_line.read_sources(sources, arguments.data_dir)
    output_dir = arguments.output_dir or arguments.data_dir / "grpo_processed"
    tables: dict[Path, list[Row]] = {}
    reports = []
    for source in sources:
        raw = problems[source.name]
        dropped: Counter[str] = Counter()
        if source is DAPO:
            written, dropped = _training_files(problems, arguments)
        else:
            written = {f"val_{source.name}.parquet": benchmark_rows(source, raw.problems, arguments.variant)}
        tables |= {output_dir / name: rows for name, rows in written.items()}
        reports.append(command_line.make_report(source, arguments.data_dir, raw, dropped, written))
    options = {"variant": arguments.variant, "train_ratio": arguments.train_ratio, "seed": arguments.seed}
    summary = command_line.summary_json(reports, options)
    write_files(tables, {output_dir / command_line.SUMMARY_FILE: summary})
    command_line.print_reports(reports, output_dir)


def _training_files(
    problems: dict[str, Problems], arguments: argparse.Namespace
) -> tuple[dict[str, list[Row]], Counter[str]]:
    """Return DAPO's two files, and the numbers that the filters dropped."""
    raw = problems[DAPO.name].problems
    benchmarks = [problems[source.name] for source in BENCHMARKS if source.name in problems]
    is_too_long = None
    if arguments.tokenizer is not None:
        is_too_long = _length_rule(arguments.tokenizer, arguments.max_prompt_length, arguments.variant)
    filtered = filter_problems(
        raw,
        benchmark_questions=[problem.question for benchmark in benchmarks for problem in benchmark.problems],
        is_too_long=is_too_long,
    )
    split = split_training(
        filtered.kept,
        num_raw=len(raw),
        train_ratio=arguments.train_ratio,
        seed=arguments.seed,
        variant=arguments.variant,
    )
    files = {TRAIN_FILE: split.train, VALIDATION_FILE: split.validation}
    for name, rows in files.items():
        if not rows:
            raise RawFileError(
                f"{arguments.data_dir / DAPO.raw_path}: no row is left for {name} after filters "
                f"({dict(filtered.dropped)}) and split: give more rows or another --train-ratio"
            )
    return files, filtered.dropped


def _length_rule(tokenizer_path: str, max_prompt_length: int, variant: Variant) -> Callable[[Problem], bool]:
    """Return the rule that a prompt, through the tokenizer's chat template, exceeds the limit in tokens."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_path)

    def is_too_long(problem: Problem) -> bool:
        row = prompt_row(problem, data_source=DAPO.data_source, split="train", variant=variant)
        tokens = tokenizer.apply_chat_template(
            row["prompt"], add_generation_prompt=True, tokenize=True, return_dict=False
        )
        return len(tokens) > max_prompt_length

    return is_too_long


def main(argv: list[str] | None = None) -> None:
    """Run the command."""
    parser = command_line.make_parser(
        module="opd.data.prepare_grpo_data",
        description="Prepares DAPO-Math-17k for training (80/20 split) and AIME24, AIME25 and MATH-500 for validation.",
        example=EXAMPLE,
    )
    parser.add_argument("--output-dir", type=Path, metavar="DIR", help="default: DATA_DIR/grpo_processed")
    command_line.add_sets_option(parser, (DAPO, *BENCHMARKS))
    parser.add_argument(
        "--variant", choices=VARIANTS, default="boxed", help="instruction of every prompt (default: boxed)"
    )
    parser.add_argument(
        "--train-ratio",
        type=command_line.ratio,
        default=os.environ.get("DAPO_TRAIN_RATIO", str(DEFAULT_TRAIN_RATIO)),
        metavar="R",
        help=f"share of DAPO's rows in the training file (default: $DAPO_TRAIN_RATIO, else {DEFAULT_TRAIN_RATIO})",
    )
    parser.add_argument(
        "--seed", type=int, default=42, metavar="N", help="of the shuffle before the split (default: 42)"
    )
    parser.add_argument("--tokenizer", metavar="MODEL", help="drop training prompts beyond --max-prompt-length tokens")
    parser.add_argument("--max-prompt-length", type=int, default=2048, metavar="N", help="in tokens (default: 2048)")
    command_line.run(prepare, parser.parse_args(argv))


if __name__ == "__main__":
    main()
