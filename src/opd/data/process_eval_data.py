"""`python -m opd.data.process_eval_data`: the three benchmarks in each instruction variant, for kind `eval`."""

import argparse
from collections import Counter
from functools import partial

from opd.data import command_line
from opd.data.math_sources import BENCHMARKS, VARIANTS, MathSource, Problem
from opd.data.rows import benchmark_rows

EXAMPLE = """\
  python -m opd.data.process_eval_data --data-dir data
    reads   data/AIME_2024/aime_2024_problems.parquet, data/AIME_2025/train.jsonl, data/MATH-500/test.jsonl
    writes  data/eval_processed/{boxed,dapo,none}/val_{aime24,aime25,math500}.parquet
  python -m opd.data.process_eval_data --sets math500 --variants boxed"""
FOLDER = "eval_processed"


def process(arguments: argparse.Namespace) -> None:
    """Read and write as the command line says."""

    def prepared(source: MathSource, problems: dict[str, list[Problem]]) -> command_line.Prepared:
        rows = partial(benchmark_rows, source, problems[source.name])
        return {f"{variant}/val_{source.name}.parquet": rows(variant) for variant in arguments.variants}, Counter()

    command_line.prepare_sources(BENCHMARKS, arguments, prepared, folder=FOLDER, options=["variants"])


def main(argv: list[str] | None = None) -> None:
    """Run the command."""
    parser = command_line.make_parser(
        module="opd.data.process_eval_data",
        description="Prepares AIME24, AIME25 and MATH-500 for evaluation; every problem is kept, in its order.",
        example=EXAMPLE,
        folder=FOLDER,
        sources=BENCHMARKS,
    )
    parser.add_argument(
        "--variants",
        nargs="+",
        choices=VARIANTS,
        default=list(VARIANTS),
        metavar="VARIANT",
        help=f"instruction variants, of {', '.join(VARIANTS)} (default: all)",
    )
    command_line.run(process, parser.parse_args(argv))


if __name__ == "__main__":
    main()
