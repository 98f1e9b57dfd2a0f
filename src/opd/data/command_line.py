"""Parts of the preparation commands: options, the counts at the end, the exit code."""

import argparse
import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from opd.data.math_sources import MathSource, Problem
from opd.data.raw_files import RawFileError
from opd.data.rows import SCHEMA, Row, write_files
from opd.experiment.sections import Data

EXIT_BAD_INPUT = 2
SUMMARY_FILE = "summary.json"


class SetReport(NamedTuple):
    """Counts of one raw file."""

    name: str
    raw_path: Path
    num_raw: int
    dropped: Counter[str]
    num_written: dict[str, int]
    """Rows by the name of the prepared file."""
    notes: Sequence[str] = ()


def bare_parser(*, module: str, description: str, example: str) -> argparse.ArgumentParser:
    """Return a parser without options, which shows the example at its end."""
    return argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=description,
        epilog=f"example:\n{example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def make_parser(
    *, module: str, description: str, example: str, folder: str | None = None, sources: Sequence[MathSource] = ()
) -> argparse.ArgumentParser:
    """Return the parser of a command that reads raw files.

    With `folder`, the output's below DATA_DIR, it has `--output-dir`; with `sources`, it has `--sets`, which leaves some out.
    """
    parser = bare_parser(module=module, description=description, example=example)
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=Path(os.environ.get("DATA_DIR", "data")),
        metavar="DIR",
        help="folder of the raw files (default: $DATA_DIR, else data)",
    )
    if folder is not None:
        parser.add_argument("--output-dir", type=Path, metavar="DIR", help=f"default: DATA_DIR/{folder}")
    if names := [source.name for source in sources]:
        text = f"prepare only these of {', '.join(names)}"
        parser.add_argument("--sets", nargs="+", choices=names, default=names, metavar="SET", help=text)
    return parser


Prepared = tuple[Mapping[str, Sequence[Row]], Counter[str]]
"""A source's rows by the name of their file, and its drops by reason."""


def prepare_sources(
    sources: Sequence[MathSource],
    arguments: argparse.Namespace,
    prepared: Callable[[MathSource, dict[str, list[Problem]]], Prepared],
    *,
    folder: str,
    options: Sequence[str],
) -> None:
    """Write the files of the sources that `--sets` names and `summary.json`, and print the counts.

    Args:
        prepared: gets a source and the problems of all sources by name.
        options: names of the arguments that the summary repeats.
    """
    chosen = [source for source in sources if source.name in arguments.sets]
    problems = {source.name: source.read(arguments.data_dir / source.raw_path) for source in chosen}
    files, reports = dict[str, Sequence[Row]](), list[SetReport]()
    for source in chosen:
        found, dropped = prepared(source, problems)
        files |= found
        raw, num_written = arguments.data_dir / source.raw_path, {name: len(rows) for name, rows in found.items()}
        reports.append(SetReport(source.name, raw, len(problems[source.name]), dropped, num_written))
    facts = {name: getattr(arguments, name) for name in options}
    write_prepared(arguments.output_dir or arguments.data_dir / folder, files, reports, facts)


def write_prepared(
    output_dir: Path,
    tables: Mapping[str, Sequence[Row]],
    reports: Sequence[SetReport],
    options: dict[str, Any],
    *,
    schema: pa.Schema = SCHEMA,
) -> None:
    """Write every file and `summary.json`, or none, and print the counts in and out, drops by reason, and notes."""
    texts = {output_dir / SUMMARY_FILE: summary_json(reports, options)}
    write_files({output_dir / name: rows for name, rows in tables.items()}, texts, schema=schema)
    print(f"prepared in {output_dir}")
    for report in reports:
        written = ", ".join(f"{count} to {name}" for name, count in report.num_written.items()) or "none written"
        dropped = "".join(f", {count} dropped: {reason}" for reason, count in sorted(report.dropped.items()))
        print(f"  {report.name}: {report.num_raw} raw rows, {written}{dropped}")
        for note in report.notes:
            print(f"  note: {report.name}: {note}")


def summary_json(reports: Sequence[SetReport], options: dict[str, Any]) -> str:
    """Return the counts as JSON, with the hash of each raw file."""
    sets = {
        report.name: {
            "raw_file": report.raw_path.name,
            "raw_sha256": hashlib.sha256(report.raw_path.read_bytes()).hexdigest(),
            "num_raw": report.num_raw,
            "num_dropped": dict(sorted(report.dropped.items())),
            "num_written": report.num_written,
            "notes": list(report.notes),
        }
        for report in reports
    }
    return json.dumps({"options": options, "sets": sets}, indent=2, ensure_ascii=False) + "\n"


def add_split_options(parser: argparse.ArgumentParser, *, variable: str, rows: str, seed: str) -> None:
    """Add `--train-ratio`, which an environment variable sets too, and `--seed`."""
    default = Data.model_fields["train_ratio"].default
    parser.add_argument(
        "--train-ratio",
        type=_ratio,
        default=os.environ.get(variable, str(default)),
        metavar="R",
        help=f"share of {rows} in the training file (default: ${variable}, else {default})",
    )
    parser.add_argument("--seed", type=int, default=42, metavar="N", help=f"of {seed} (default: 42)")


def _ratio(text: str) -> float:
    value = float(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be between 0 and 1, both excluded")
    return value


def positive(text: str) -> int:
    """Return a whole number of at least 1, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be at least 1")
    return value


def run(command: Callable[[argparse.Namespace], None], arguments: argparse.Namespace) -> None:
    """Run a command; a bad raw file ends it with one line and exit code 2."""
    try:
        command(arguments)
    except RawFileError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)
