"""`python -m opd.data.process_eval_data`: the three benchmarks in each instruction variant, for kind `eval`."""

import argparse
from collections import Counter
from pathlib import Path

from opd.data import command_line
from opd.data.math_sources import BENCHMARKS, VARIANTS
from opd.data.rows import Row, benchmark_rows, write_files

EXAMPLE = """\
  python -m opd.data.process_eval_data --data-dir data
    reads   data/AIME_2024/aime_2024_problems.parquet, data/AIME_2025/train.jsonl, data/MATH-500/test.jsonl
    writes  data/eval_processed/{boxed,dapo,none}/val_{aime24,aime25,math500}.parquet
  python -m opd.data.process_eval_data --sets math500 --variants boxed"""


def process(arguments: argparse.Namespace) -> None:
    """Read and write as the command line says."""
    sources = [source for source in BENCHMARKS if source.name in arguments.sets]
    problems = command_line.read_sources(sources, arguments.data_dir)
    output_dir = arguments.output_dir or arguments.data_dir / "eval_processed"
    tables: dict[Path, list[Row]] = {}
    reports = []
    for source in sources:
        raw = problems[source.name]
        written = {
            f"{variant}/val_{source.name}.parquet": benchmark_rows(source, raw.problems, variant)
            for variant in arguments.variants
        }
        tables |= {output_dir / name: rows for name, rows in written.items()}
        reports.append(command_line.make_report(source, arguments.data_dir, raw, Counter(), written))
    summary = command_line.summary_json(reports, {"variants": arguments.variants})
    write_files(tables, {output_dir / command_line.SUMMARY_FILE: summary})
    command_line.print_reports(reports, output_dir)


def main(argv: list[str] | None = None) -> None:
    """Run the command."""
    parser = command_line.make_parser(
        module="opd.data.process_eval_data",
        description="Prepares AIME24, AIME25 and MATH-500 for evaluation; every problem is kept, in its order.",
        example=EXAMPLE,
    )
    parser.add_argument("--output-dir", type=Path, metavar="DIR", help="default: DATA_DIR/eval_processed")
    command_line.add_sets_option(parser, BENCHMARKS)
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
