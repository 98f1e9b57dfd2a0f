"""`python -m opd.data.prepare_grpo_data`: the training file, its validation split and the three benchmarks."""

import argparse
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from opd.data import command_line
from opd.data.math_sources import BENCHMARKS, DAPO, VARIANTS, MathSource, Problem, Variant
from opd.data.raw_files import RawFileError
from opd.data.rows import Row, benchmark_rows, prompt_row


def normalised(question: str) -> str:
    """Return a question's identity: its text up to Unicode form, case and white space."""
    return " ".join(unicodedata.normalize("NFKC", question).casefold().split())


def filter_problems(
    problems: Sequence[Problem], *, benchmark_questions: Iterable[str] = ()
) -> tuple[list[Problem], Counter[str]]:
    """Return the problems that teach something and that validation does not ask, and drops by the first reason that applies.

    Args:
        problems: in the order of the raw file.
        benchmark_questions: questions of the validation sets, which must not be trained on.
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
        reasons = {
            "empty_problem": not identity,
            "empty_answer": not problem.answer,
            "conflicting_answers": len(answers.get(identity, ())) > 1,
            "duplicate_problem": identity in seen,
            "benchmark_problem": identity in benchmark,
        }
        reason = next((name for name, holds in reasons.items() if holds), None)
        if reason is None:
            kept.append(problem)
        else:
            dropped[reason] += 1
        seen.add(identity)
    return kept, dropped


FOLDER = "grpo_processed"
TRAIN_FILE = "train.parquet"
VALIDATION_FILE = "val_dapo.parquet"

EXAMPLE = """\
  python -m opd.data.prepare_grpo_data --data-dir data
    reads   data/DAPO-Math-17k-dedup/distinct-prompts-with-rewards.parquet, data/AIME_2024/aime_2024_problems.parquet,
            data/AIME_2025/train.jsonl, data/MATH-500/test.jsonl
    writes  data/grpo_processed/{train,val_dapo,val_aime24,val_aime25,val_math500}.parquet
  python -m opd.data.prepare_grpo_data --sets dapo --variant dapo
    only DAPO, asking for an `Answer:` line (reward math_dapo)"""


def split_training(
    problems: Iterable[Problem], *, num_raw: int, train_ratio: float, seed: int, variant: Variant
) -> tuple[list[Row], list[Row]]:
    """Shuffle and split the problems; return the rows of training and of validation.

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

    def rows_of(side: list[int], split: str) -> list[Row]:
        return [
            prompt_row(by_row[row], data_source=DAPO.data_source, split=split, variant=variant)
            for row in side
            if row in by_row
        ]

    return rows_of(permutation[:num_train], "train"), rows_of(permutation[num_train:], "val")


def prepare(arguments: argparse.Namespace) -> None:
    """Read, filter, split and write as the command line says."""

    def prepared(source: MathSource, problems: dict[str, list[Problem]]) -> command_line.Prepared:
        if source is DAPO:
            return _training_files(problems, arguments)
        rows = benchmark_rows(source, problems[source.name], arguments.variant)
        return {f"val_{source.name}.parquet": rows}, Counter()

    options = ["variant", "train_ratio", "seed"]
    command_line.prepare_sources((DAPO, *BENCHMARKS), arguments, prepared, folder=FOLDER, options=options)


def _training_files(problems: dict[str, list[Problem]], arguments: argparse.Namespace) -> command_line.Prepared:
    """Return DAPO's two files, and the numbers that the filters dropped."""
    raw = problems[DAPO.name]
    benchmarks = [problem.question for source in BENCHMARKS for problem in problems.get(source.name, ())]
    kept, dropped = filter_problems(raw, benchmark_questions=benchmarks)
    train, validation = split_training(
        kept, num_raw=len(raw), train_ratio=arguments.train_ratio, seed=arguments.seed, variant=arguments.variant
    )
    files = {TRAIN_FILE: train, VALIDATION_FILE: validation}
    for name, rows in files.items():
        if not rows:
            raise RawFileError(
                f"{arguments.data_dir / DAPO.raw_path}: no row is left for {name} after filters "
                f"({dict(dropped)}) and split: give more rows or another --train-ratio"
            )
    return files, dropped


def main(argv: list[str] | None = None) -> None:
    """Run the command."""
    parser = command_line.make_parser(
        module="opd.data.prepare_grpo_data",
        description="Prepares DAPO-Math-17k for training (80/20 split) and AIME24, AIME25 and MATH-500 for validation.",
        example=EXAMPLE,
        folder=FOLDER,
        sources=(DAPO, *BENCHMARKS),
    )
    parser.add_argument(
        "--variant", choices=VARIANTS, default="boxed", help="instruction of every prompt (default: boxed)"
    )
    command_line.add_split_options(
        parser, variable="DAPO_TRAIN_RATIO", rows="DAPO's rows", seed="the shuffle before the split"
    )
    command_line.run(prepare, parser.parse_args(argv))


if __name__ == "__main__":
    main()
