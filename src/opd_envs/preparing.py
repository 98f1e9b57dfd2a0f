"""Parts that the preparation commands share: common options, the database, files and reports."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from opd.data import command_line
from opd.data.command_line import SetReport
from opd.data.raw_files import RawFileError
from opd.data.rows import Row
from opd_envs import LANGUAGES, Language
from opd_envs.database_folder import M, ManifestError, read_manifest
from opd_envs.rows import AGENT_SCHEMA

FOLDER = "agent_processed"
TRAIN_FILE = "train.parquet"
Tables = dict[str, list[Row]]


def val_file(language: Language) -> str:
    """Return the name of the travel validation file of a language."""
    return f"val_travel_{language}.parquet"


def make_parser(*, module: str, description: str, example: str) -> argparse.ArgumentParser:
    """Return a parser with the options of both commands."""
    parser = command_line.make_parser(module=module, description=description, example=example, folder=FOLDER)
    parser.add_argument(
        "--database-dir",
        type=Path,
        default=os.environ.get("DATABASE_DIR"),
        metavar="DIR",
        help="the tool database that answers the tasks (default: $DATABASE_DIR)",
    )
    parser.add_argument("--languages", nargs="+", choices=LANGUAGES, default=list(LANGUAGES), help="default: both")
    command_line.add_split_options(parser, variable="TRAIN_RATIO", rows="the tasks", seed="tasks and split")
    return parser


def manifest_of(folder: Path | None, model: type[M]) -> M:
    """Read the manifest of the database that --database-dir names.

    Raises:
        RawFileError: no such database.
    """
    if folder is None:
        raise RawFileError(
            f"--database-dir is not set: make a database with `{model.MADE_BY} --out DIR` and name it here"
        )
    try:
        return read_manifest(folder, model)
    except ManifestError as error:
        raise RawFileError(str(error)) from error


def finish(
    arguments: argparse.Namespace,
    tables: Tables,
    reports: list[SetReport],
    *,
    options: Sequence[str],
    left_out: Sequence[str] = (),
) -> None:
    """Write every file or none, and print the counts.

    Args:
        tables: rows by file.
        options: names of the arguments that the summary repeats.
        left_out: sets without rows, with the reason.

    Raises:
        RawFileError: there is no row.
    """
    output_dir = arguments.output_dir or arguments.data_dir / FOLDER
    if not tables:
        raise RawFileError(f"{output_dir}: no row is left; {'; '.join(left_out)}")
    facts = {key: getattr(arguments, key) for key in options} | {"left_out": list(left_out)}
    command_line.write_prepared(output_dir, tables, reports, facts, schema=AGENT_SCHEMA)
    for reason in left_out:
        print(f"left out: {reason}")
