"""`python -m opd_envs.deepplanning check|import`: looks at the published archives, and makes the tool database of them."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from opd.data.raw_files import RawFileError
from opd_envs.database_folder import write_archive
from opd_envs.deepplanning.archive import Archive, ArchiveError
from opd_envs.deepplanning.importer import (
    Asked,
    ImportRefused,
    checked_cases,
    import_archives,
    read_asked,
)
from opd_envs.deepplanning.layout import NUM_EXAMPLES, Surprises
from opd_envs.deepplanning.parts import (
    ARCHIVES,
    LAYOUTS,
    LEVELS,
    PARTS,
    PUBLISHED_AT,
    QUERY_FILES,
    SHOPPING_PARTS,
    Part,
)
from opd_envs.travel.entries import LANGUAGES

EXIT_SURPRISED = 1
EXIT_BAD_INPUT = 2
EXAMPLE = """\
example:
  python -m opd_envs.deepplanning check
    reads data/DeepPlanning/travelplanning/database/database_{en,zh}.zip and shoppingplanning/database_zip/
    database_level{1,2,3}.tar.gz, as far as they are there, and says where they differ from the published layout
  python -m opd_envs.deepplanning import --out databases/deepplanning
    writes databases/deepplanning/{deepplanning_en.sqlite,...,deepplanning_shopping_3.sqlite,manifest.json}: what
    DATABASE_DIR names

exit code: 0; 1 faults, or with --strict notes; 2 wrong usage, or an archive that cannot be read"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    arguments = _parser().parse_args(argv)
    surprises = {part: Surprises(None if arguments.all else NUM_EXAMPLES) for part in PARTS}
    try:
        archives = _archives(arguments)
        queries = {part: _queries(arguments.data_dir / QUERY_FILES[part], part) for part in archives}
        if arguments.command == "check":
            for part, path in archives.items():
                _check(path, part, queries[part], surprises[part])
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
        for part, cases in manifest.cases.items():
            print(f"{part}: {len(cases)} cases")
        if arguments.archive is not None:
            print(f"{arguments.archive}: sha256 {write_archive(arguments.out, arguments.archive)}")
        return 0
    num_faults = sum(surprises[part].num_faults for part in archives)
    num_notes = sum(surprises[part].num_notes for part in archives)
    print(f"{num_faults} faults, {num_notes} notes")
    return EXIT_SURPRISED if num_faults or (arguments.strict and num_notes) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m opd_envs.deepplanning",
        description="DeepPlanning's archives as the tool database of agent.toolset deepplanning-en or -zh (travel), "
        "deepplanning-shopping-en or -zh.",
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
        command.add_argument(
            "--languages", nargs="+", choices=LANGUAGES, default=[], help="of travel; default: those that are there"
        )
        command.add_argument(
            "--levels",
            nargs="+",
            type=int,
            choices=LEVELS,
            default=[],
            help="of shopping; default: those that are there; with --languages or --levels nothing but what they name",
        )
        command.add_argument("--all", action="store_true", help=f"every place, not the first {NUM_EXAMPLES} of a kind")
    return parser


def _archives(arguments: argparse.Namespace) -> dict[Part, Path]:
    named: list[Part] = [*arguments.languages, *(SHOPPING_PARTS[level] for level in arguments.levels)]
    paths = {part: arguments.data_dir / ARCHIVES[part] for part in named or PARTS}
    found = {part: path for part, path in paths.items() if path.is_file()}
    absent = [path for part, path in paths.items() if part not in found]
    if absent and (named or not found):
        raise RawFileError(f"{', '.join(map(str, absent))}: no such file. Get it from {PUBLISHED_AT}")
    for path in absent:
        print(f"{path}: no such file; left out")
    return found


def _queries(path: Path, part: Part) -> Asked | None:
    if path.is_file():
        return read_asked(path, part)
    print(f"{path}: no such file; the archive is not compared with its queries")
    return None


def _check(path: Path, part: Part, queries: Asked | None, surprises: Surprises) -> None:
    with Archive(path, LAYOUTS[part], surprises) as archive:
        for _ in checked_cases(archive, queries, surprises):
            pass


def _print(archives: dict[Part, Path], surprises: dict[Part, Surprises]) -> None:
    for part, path in archives.items():
        for line in surprises[part].lines():
            print(f"{path.name}: {line}")


if __name__ == "__main__":
    sys.exit(main())
