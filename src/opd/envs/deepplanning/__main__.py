"""`python -m opd.envs.deepplanning check|import`: looks at the published travel archives, and makes the tool database of them."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from opd.data.raw_files import RawFileError
from opd.envs.database_folder import write_archive
from opd.envs.deepplanning.archive import Archive, ArchiveError
from opd.envs.deepplanning.importer import (
    ImportRefused,
    NamedEntries,
    checked_cases,
    import_archives,
    read_named_entries,
)
from opd.envs.deepplanning.surprises import NUM_EXAMPLES, Surprises
from opd.envs.travel.data.deepplanning import PUBLISHED_AT, TRAVEL_ARCHIVES, TRAVEL_FILES
from opd.envs.travel.entries import LANGUAGES, Language

EXIT_SURPRISED = 1
EXIT_BAD_INPUT = 2
EXAMPLE = """\
example:
  python -m opd.envs.deepplanning check
    reads data/DeepPlanning/travelplanning/database/database_{en,zh}.zip and says where they differ from the published layout
  python -m opd.envs.deepplanning import --out databases/deepplanning
    writes databases/deepplanning/{deepplanning_en.sqlite,deepplanning_zh.sqlite,manifest.json}: what DATABASE_DIR names

exit code: 0; 1 faults, or with --strict notes; 2 wrong usage, or an archive that cannot be read"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    arguments = _parser().parse_args(argv)
    surprises = {language: Surprises(None if arguments.all else NUM_EXAMPLES) for language in LANGUAGES}
    try:
        archives = _archives(arguments)
        queries = {language: _queries(arguments.data_dir / TRAVEL_FILES[language]) for language in archives}
        if arguments.command == "check":
            for language, path in archives.items():
                _check(path, queries[language], surprises[language])
        else:
            manifest = import_archives(
                archives, arguments.out, queries=queries, surprises=surprises, replace=arguments.force
            )
    except ImportRefused as error:
        _print(archives, surprises)
        print(f"error: {error}; `check --all` lists every one", file=sys.stderr)
        return EXIT_SURPRISED
    except (ArchiveError, RawFileError, FileExistsError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    _print(archives, surprises)
    if arguments.command == "import":
        for name, record in manifest.files.items():
            print(f"{arguments.out / name}: {record.num_bytes} bytes, sha256 {record.sha256}")
        for language, cases in manifest.cases.items():
            print(f"{language}: {len(cases)} cases")
        if arguments.archive is not None:
            print(f"{arguments.archive}: sha256 {write_archive(arguments.out, arguments.archive)}")
        return 0
    num_faults = sum(surprises[language].num_faults for language in archives)
    num_notes = sum(surprises[language].num_notes for language in archives)
    print(f"{num_faults} faults, {num_notes} notes")
    return EXIT_SURPRISED if num_faults or (arguments.strict and num_notes) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m opd.envs.deepplanning",
        description="DeepPlanning's travel archives as the tool database of agent.toolset opd.envs.deepplanning.en or .zh.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="name everything in which the archives differ from the published layout")
    check.add_argument("--strict", action="store_true", help="notes are a failure too")
    make = commands.add_parser("import", help="check the archives and write the database folder")
    make.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write: the DATABASE_DIR")
    make.add_argument("--archive", type=Path, metavar="FILE", help="also pack the folder as .tar.gz")
    make.add_argument("--force", action="store_true", help="replace a database that is there")
    for command in (check, make):
        command.add_argument(
            "--data-dir",
            type=Path,
            default=Path(os.environ.get("DATA_DIR", "data")),
            metavar="DIR",
            help="folder that holds DeepPlanning/ (default: $DATA_DIR, else data)",
        )
        command.add_argument("--languages", nargs="+", choices=LANGUAGES, help="default: those whose archive is there")
        command.add_argument("--all", action="store_true", help=f"every place, not the first {NUM_EXAMPLES} of a kind")
    return parser


def _archives(arguments: argparse.Namespace) -> dict[Language, Path]:
    paths = {language: arguments.data_dir / TRAVEL_ARCHIVES[language] for language in arguments.languages or LANGUAGES}
    found = {language: path for language, path in paths.items() if path.is_file()}
    absent = [path for language, path in paths.items() if language not in found]
    if absent and (arguments.languages or not found):
        raise RawFileError(f"{', '.join(map(str, absent))}: no such file. Get it from {PUBLISHED_AT}")
    for path in absent:
        print(f"{path}: no such file; this language is left out")
    return found


def _queries(path: Path) -> NamedEntries | None:
    if path.is_file():
        return read_named_entries(path)
    print(f"{path}: no such file; the archive is not compared with its queries")
    return None


def _check(path: Path, queries: NamedEntries | None, surprises: Surprises) -> None:
    with Archive(path, surprises) as archive:
        for _ in checked_cases(archive, queries, surprises):
            pass


def _print(archives: dict[Language, Path], surprises: dict[Language, Surprises]) -> None:
    for language, path in archives.items():
        for line in surprises[language].lines():
            print(f"{path.name}: {line}")


if __name__ == "__main__":
    sys.exit(main())
