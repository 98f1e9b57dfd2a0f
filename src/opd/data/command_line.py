"""What the preparation commands share: their options, the progress bar, the table at the end and the exit code."""

import argparse
import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from opd.data.math_sources import MathSource, Problems
from opd.data.raw_files import RawFileError
from opd.data.rows import Row

EXIT_BAD_INPUT = 2
SUMMARY_FILE = "summary.json"


class SetReport(NamedTuple):
    """What became of one raw file."""

    name: str
    raw_path: Path
    num_raw: int
    dropped: Counter[str]
    num_written: dict[str, int]
    """Rows by the name of the prepared file."""
    notes: list[str]


def make_parser(*, module: str, description: str, example: str) -> argparse.ArgumentParser:
    """The parser with the options that the commands have in common."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=description,
        epilog=f"example:\n{example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=Path(os.environ.get("DATA_DIR", "data")),
        metavar="DIR",
        help="folder of the raw files (default: $DATA_DIR, else data)",
    )
    return parser


def add_sets_option(parser: argparse.ArgumentParser, sources: Sequence[MathSource]) -> None:
    """`--sets`, which leaves data sets out."""
    names = [source.name for source in sources]
    parser.add_argument(
        "--sets",
        nargs="+",
        choices=names,
        default=names,
        metavar="SET",
        help=f"prepare only these of {', '.join(names)}",
    )


def progress_bar(console: Console) -> Progress:
    """A bar on standard error; where that is no terminal, only its last state is printed."""
    columns = (TextColumn("{task.description:<8}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console)


def read_sources(sources: Sequence[MathSource], data_dir: Path, console: Console) -> dict[str, Problems]:
    """The problems of each source by its name, with a line of progress for each file."""
    problems = {}
    for source in sources:
        path = data_dir / source.raw_path
        console.print(f"reading {path}", highlight=False, soft_wrap=True)
        problems[source.name] = source.read(path)
    return problems


def make_report(
    source: MathSource, data_dir: Path, problems: Problems, dropped: Counter[str], written: Mapping[str, Sequence[Row]]
) -> SetReport:
    """The report of one source whose prepared files are `written`."""
    num_written = {name: len(rows) for name, rows in written.items()}
    return SetReport(
        source.name, data_dir / source.raw_path, len(problems.problems), dropped, num_written, problems.notes
    )


def print_reports(reports: Sequence[SetReport], output_dir: Path, console: Console) -> None:
    """The table of counts in and out, drops by reason, and notes."""
    table = Table("set", "raw rows", "dropped", "written", title=f"Prepared in {output_dir}")
    for report in reports:
        dropped = "\n".join(f"{count} {reason}" for reason, count in sorted(report.dropped.items())) or "0"
        written = "\n".join(f"{count} → {name}" for name, count in report.num_written.items())
        table.add_row(report.name, str(report.num_raw), dropped, written)
    console.print(table)
    for report in reports:
        for note in report.notes:
            console.print(f"note: {report.name}: {note}", highlight=False, soft_wrap=True)


def summary_json(reports: Sequence[SetReport], options: dict[str, Any]) -> str:
    """The same counts for machines, with the hash of each raw file: what this folder was made from, and how."""
    sets = {
        report.name: {
            "raw_file": report.raw_path.name,
            "raw_sha256": hashlib.sha256(report.raw_path.read_bytes()).hexdigest(),
            "num_raw": report.num_raw,
            "num_dropped": dict(sorted(report.dropped.items())),
            "num_written": report.num_written,
            "notes": report.notes,
        }
        for report in reports
    }
    return json.dumps({"options": options, "sets": sets}, indent=2, ensure_ascii=False) + "\n"


def ratio(text: str) -> float:
    """A share between 0 and 1, both excluded, for argparse."""
    value = float(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text}: must lie between 0 and 1, both excluded")
    return value


def positive(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be at least 1")
    return value


def run(command: Callable[[argparse.Namespace], None], arguments: argparse.Namespace) -> None:
    """Runs a command; a bad raw file ends it with one clear line and exit code 2."""
    try:
        command(arguments)
    except RawFileError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)
