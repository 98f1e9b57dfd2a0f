"""Parts that the preparation commands share: common options, filters, files and reports."""

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from opd.data import command_line
from opd.data.command_line import SetReport
from opd.data.raw_files import RawFileError
from opd.data.rows import Row, write_files
from opd.experiment.sections import Data
from opd_envs.rows import AGENT_SCHEMA, filter_rows, length_rule
from opd_envs.travel.entries import LANGUAGES, Language

TRAIN_FILE = "train.parquet"
DEFAULT_TRAIN_RATIO = Data.model_fields["train_ratio"].default
Tables = dict[str, list[Row]]


def val_file(language: Language) -> str:
    """Return the name of the travel validation file of a language."""
    return f"val_travel_{language}.parquet"


def make_parser(*, module: str, description: str, example: str) -> argparse.ArgumentParser:
    """Return a parser with the options of both commands."""
    parser = command_line.make_parser(module=module, description=description, example=example)
    database_dir = os.environ.get("DATABASE_DIR")
    parser.add_argument(
        "--database-dir",
        type=Path,
        default=None if database_dir is None else Path(database_dir),
        metavar="DIR",
        help="the tool database that answers the tasks (default: $DATABASE_DIR)",
    )
    parser.add_argument("--output-dir", type=Path, metavar="DIR", help="default: DATA_DIR/agent_processed")
    parser.add_argument("--languages", nargs="+", choices=LANGUAGES, default=list(LANGUAGES), help="default: both")
    parser.add_argument(
        "--train-ratio",
        type=command_line.ratio,
        default=os.environ.get("TRAIN_RATIO", str(DEFAULT_TRAIN_RATIO)),
        metavar="R",
        help=f"share of the tasks in the training file (default: $TRAIN_RATIO, else {DEFAULT_TRAIN_RATIO})",
    )
    parser.add_argument("--seed", type=int, default=42, metavar="N", help="of tasks and split (default: 42)")
    parser.add_argument(
        "--tokenizer", metavar="MODEL", help="drop prompts beyond --max-prompt-length tokens, tools included"
    )
    parser.add_argument("--max-prompt-length", type=int, default=4096, metavar="N", help="in tokens (default: 4096)")
    return parser


def finish(
    arguments: argparse.Namespace,
    tables: Tables,
    reports: list[SetReport],
    *,
    toolset_of: Callable[[Row], str],
    options: Sequence[str],
    left_out: Sequence[str] = (),
    texts: Mapping[str, str] | None = None,
) -> None:
    """Filter the rows, write every file or none, and print what became of them.

    Args:
        tables: rows by file.
        toolset_of: names the environment whose tools a row is offered.
        options: names of the arguments that the summary repeats.
        left_out: sets without rows, with the reason.
        texts: further files by name.

    Raises:
        RawFileError: a file would have no row.
    """
    output_dir = arguments.output_dir or arguments.data_dir / "agent_processed"
    if not tables:
        raise RawFileError(f"{output_dir}: no row is left; {'; '.join(left_out)}")
    rule = None
    if arguments.tokenizer is not None:
        rule = length_rule(arguments.tokenizer, arguments.max_prompt_length, toolset_of)
    filtered = filter_rows(tables, train_file=TRAIN_FILE, is_too_long=rule)
    if filtered.dropped:
        num_before = sum(len(rows) for rows in tables.values())
        written = {name: len(rows) for name, rows in filtered.tables.items()}
        reports.append(SetReport("all, filtered", reports[0].raw_path, num_before, filtered.dropped, written, []))
    for name, rows in filtered.tables.items():
        if not rows:
            raise RawFileError(f"{output_dir / name}: no row is left; give more tasks or another --train-ratio")
    told = {key: getattr(arguments, key) for key in options} | {"left_out": list(left_out)}
    files = {output_dir / command_line.SUMMARY_FILE: command_line.summary_json(reports, told)}
    files |= {output_dir / name: text for name, text in (texts or {}).items()}
    write_files({output_dir / name: rows for name, rows in filtered.tables.items()}, files, schema=AGENT_SCHEMA)
    command_line.print_reports(reports, output_dir)
    for what in left_out:
        print(f"left out: {what}")


def json_lines(records: Sequence[Mapping[str, object]]) -> str:
    """Return the records as JSON lines."""
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
