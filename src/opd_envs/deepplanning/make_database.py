"""`python -m opd_envs.deepplanning.make_database`: the published travel archives as a tool database.

Archives are read member by member and never unpacked, so that no name in them reaches the disk.
"""

import csv
import io
import re
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from zlib import error as ZlibError

from opd.data.command_line import make_parser
from opd.store.durable import hash_file
from opd_envs import LANGUAGES, Language
from opd_envs.database_folder import new_folder, write_manifest, written
from opd_envs.deepplanning.database import CREATE, DATABASE_FILES, Manifest, insert_statement
from opd_envs.deepplanning.layout import ARCHIVES, PUBLISHED_AT, TABLES, TRAINS, Table

_MAX_FIELD_CHARS = 2**17  # csv's own limit, which is the process's: a reader of other files may have raised it
_MEMBER = re.compile(r"(?:[^/]+/)*id_([A-Za-z0-9_-]{1,40})/([a-z]+/[a-z_]+\.csv)")
_UNREADABLE = (
    OSError,
    zipfile.BadZipFile,
    ZlibError,
    EOFError,
    RuntimeError,  # of zipfile: an encrypted member, or a compression that it lacks
    UnicodeError,
    csv.Error,
)
"""Errors of a damaged or encrypted archive or member, and of a member that is no CSV in UTF-8."""
EXAMPLE = """\
  python -m opd_envs.deepplanning.make_database --out databases/deepplanning
    reads   data/DeepPlanning/travelplanning/database/database_{en,zh}.zip, or one of them
    writes  databases/deepplanning/{deepplanning_en.sqlite,deepplanning_zh.sqlite,manifest.json}"""


class ImportRefused(ValueError):
    """A fault of an archive, with its place."""


class Archive:
    """The files of one archive by case and table.

    Raises:
        ImportRefused: no zip archive, an archive without cases, or a file twice.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.num_missing: Counter[str] = Counter()
        """Cases without a file or an optional column, by its name."""
        try:
            self._zip = zipfile.ZipFile(path)
        except _UNREADABLE as error:
            raise ImportRefused(f"{path}: no readable zip archive ({error})") from error
        self._members: dict[tuple[str, str], zipfile.ZipInfo] = {}
        for entry in self._zip.infolist():
            if found := _MEMBER.fullmatch(entry.filename):
                if (found[1], found[2]) in self._members:
                    raise ImportRefused(f"{path.name}: id_{found[1]}/{found[2]}: is in the archive twice")
                self._members[found[1], found[2]] = entry
        if not self._members:
            raise ImportRefused(f"{path}: has no file of the form id_N/{TRAINS.file}")

    @property
    def cases(self) -> list[str]:
        """Ids of the cases, numbers in their order."""
        return sorted({case for case, _ in self._members}, key=lambda case: (len(case), case))

    def rows(self, case: str, table: Table) -> Iterator[tuple[int, dict[str, str]]]:
        """Yield a file's rows with their line numbers and every column of the table.

        Raises:
            ImportRefused: the file has a fault.
        """
        member = self._members.get((case, table.file))
        if member is None:
            self.num_missing[table.file] += 1
            return
        where = f"{self._path.name}: id_{case}/{table.file}"
        csv.field_size_limit(_MAX_FIELD_CHARS)
        try:
            with self._zip.open(member) as raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as text:
                yield from self._rows(csv.reader(text), table, where)
        except _UNREADABLE as error:
            raise ImportRefused(f"{where}: cannot be unpacked and read as UTF-8 CSV ({error})") from error

    def _rows(self, reader: Any, table: Table, where: str) -> Iterator[tuple[int, dict[str, str]]]:
        header: list[str] = next(reader, [])
        missing = set(table.columns) - set(header)
        self.num_missing.update(f"{table.file}: column {name}" for name in missing & table.optional)
        if required := sorted(missing - table.optional):
            raise ImportRefused(f"{where}: has no column {', '.join(required)}; its columns are {', '.join(header)}")
        if twice := sorted({name for name in header if header.count(name) > 1}):
            raise ImportRefused(f"{where}: has column {', '.join(twice)} twice")
        for values in filter(None, reader):
            if len(values) != len(header):
                raise ImportRefused(
                    f"{where} line {reader.line_num}: has {len(values)} fields, the header {len(header)}"
                )
            found = dict(zip(header, values, strict=True))
            yield reader.line_num, {name: found.get(name, "") for name in table.columns}


def import_archives(archives: Mapping[Language, Path], folder: Path) -> Manifest:
    """Write a database folder of the archives, the same bytes for the same archives.

    Raises:
        ImportRefused: an archive has a fault; nothing was written.
        FileExistsError: the folder has content.
    """
    num_rows: Counter[str] = Counter()
    cases: dict[Language, tuple[str, ...]] = {}
    with new_folder(folder) as scratch:
        for language, path in archives.items():
            archive = Archive(path)
            num_rows += _write(scratch / DATABASE_FILES[language], language, archive)
            cases[language] = tuple(archive.cases)
            for name, number in sorted(archive.num_missing.items()):
                print(f"note: {path.name}: {name}: missing in {number} cases")
        return write_manifest(
            scratch,
            Manifest,
            [DATABASE_FILES[language] for language in archives],
            num_rows=dict(num_rows),
            archives={language: hash_file(path)[1] for language, path in archives.items()},
            cases=cases,
        )


def _write(path: Path, language: Language, archive: Archive) -> Counter[str]:
    num_rows: Counter[str] = Counter()
    with written(path, CREATE) as connection:
        for case in archive.cases:
            for table in TABLES:
                values = [(case, line, *row.values()) for line, row in archive.rows(case, table)]
                connection.executemany(insert_statement(table), values)
                num_rows[f"{language}.{table.name}"] += len(values)
    return num_rows


def main(argv: list[str] | None = None) -> None:
    """Run the command; a fault of an archive ends it with exit code 2."""
    parser = make_parser(
        module="opd_envs.deepplanning.make_database",
        description="Writes DeepPlanning's archives as the tool database of agent.toolset deepplanning-en and -zh.",
        example=EXAMPLE,
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    arguments = parser.parse_args(argv)
    paths = {language: arguments.data_dir / ARCHIVES[language] for language in LANGUAGES}
    archives = {language: path for language, path in paths.items() if path.is_file()}
    try:
        if not archives:
            raise ImportRefused(f"{' and '.join(map(str, paths.values()))}: no such file. Get them from {PUBLISHED_AT}")
        manifest = import_archives(archives, arguments.out)
    except (ImportRefused, FileExistsError) as error:
        print(f"error: {error}; nothing was written", file=sys.stderr)
        sys.exit(2)
    for language, path in paths.items():
        print(f"{language}: {len(manifest.cases[language])} cases" if language in archives else f"{path}: no such file")


if __name__ == "__main__":
    main()
