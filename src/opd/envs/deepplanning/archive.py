"""A published zip archive: read member by member without ever being unpacked, so that no name in it reaches the disk."""

import csv
import io
import re
import stat
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from types import TracebackType
from zlib import error as ZlibError

from opd.envs.deepplanning.layout import TABLES, Table
from opd.envs.deepplanning.surprises import Surprises

MAX_MEMBERS = 100_000
MAX_MEMBER_BYTES = 512 * 2**20
MAX_TOTAL_BYTES = 16 * 2**30
"""Unpacked. The archive's own figures; zipfile reads no byte beyond them."""
MAX_ROWS = 1_000_000
"""Of one CSV file."""
_ENCRYPTED = 0x1
_CASE = re.compile(r"(?:[^/]+/)*id_([A-Za-z0-9_-]{1,40})/([a-z]+/[a-z_]+\.csv)")
_DEBRIS = re.compile(r"(^|/)(__MACOSX/|\.DS_Store$|Thumbs\.db$|\._)")
"""What operating systems leave in archives."""
_TABLE_OF_FILE = {table.file: table for table in TABLES}


class ArchiveError(ValueError):
    """The archive cannot be read at all."""


class Archive:
    """The CSV files of one language by case and table.

    Args:
        path: the zip archive.
        surprises: what members are unsafe or unexpected goes there.

    Raises:
        ArchiveError: no such file, no zip archive, or one beyond the limits.
    """

    def __init__(self, path: Path, surprises: Surprises) -> None:
        self.path = path
        self._surprises = surprises
        try:
            self._zip = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise ArchiveError(f"{path}: no readable zip archive ({error})") from error
        members = self._zip.infolist()
        self._refuse_bombs(members)
        self._members: dict[tuple[str, str], zipfile.ZipInfo] = {}
        for member in members:
            self._take(member)

    def __enter__(self) -> "Archive":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._zip.close()

    @property
    def cases(self) -> list[str]:
        """Ids of the cases, numbers in their order."""
        return sorted({case for case, _ in self._members}, key=lambda case: (len(case), case))

    def rows(self, case: str, table: Table) -> Iterator[tuple[int, dict[str, str]]]:
        """The rows of a case's file with their line numbers, every column of the table in them; faults end it early."""
        member = self._members.get((case, table.name))
        if member is None:
            self._surprises.note(f"{table.file}: no such file; the case has no {table.name}", f"id_{case}")
            return
        where = f"id_{case}"
        try:
            with self._zip.open(member) as raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as text:
                reader = csv.reader(text)
                header = next(reader, [])
                if not self._has_columns(header, table, where):
                    return
                for num_rows, values in enumerate(reader, start=1):
                    if num_rows > MAX_ROWS:
                        self._surprises.fault(f"{table.file}: has more than {MAX_ROWS} rows", where)
                        return
                    if not values:
                        continue
                    if len(values) > len(header):
                        self._surprises.fault(
                            f"{table.file}: a row has more fields than the header", f"{where} line {reader.line_num}"
                        )
                        continue
                    if len(values) < len(header):
                        self._surprises.note(
                            f"{table.file}: a row has fewer fields than the header; the rest is empty",
                            f"{where} line {reader.line_num}",
                        )
                    found = dict(zip(header, values, strict=False))
                    yield reader.line_num, {name: found.get(name, "") for name in table.column_names}
        except UnicodeDecodeError as error:
            self._surprises.fault(f"{table.file}: not UTF-8", f"{where}: {error.reason} at byte {error.start}")
        except csv.Error as error:
            self._surprises.fault(f"{table.file}: not CSV", f"{where}: {error}")
        except (zipfile.BadZipFile, ZlibError, EOFError, NotImplementedError, OSError) as error:
            self._surprises.fault(f"{table.file}: cannot be unpacked", f"{where}: {error}")

    def _refuse_bombs(self, members: Sequence[zipfile.ZipInfo]) -> None:
        total = sum(member.file_size for member in members)
        largest = max(members, key=lambda member: member.file_size, default=None)
        for value, limit, what in (
            (len(members), MAX_MEMBERS, "members"),
            (total, MAX_TOTAL_BYTES, "bytes unpacked"),
            (0 if largest is None else largest.file_size, MAX_MEMBER_BYTES, "bytes in one member"),
        ):
            if value > limit:
                self._zip.close()
                raise ArchiveError(f"{self.path}: has {value} {what}, at most {limit} are read")

    def _take(self, member: zipfile.ZipInfo) -> None:
        name = member.filename
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name:
            self._surprises.fault("archive: a member's name leads out of it", repr(name))
        elif stat.S_ISLNK(member.external_attr >> 16):
            self._surprises.fault("archive: a member is a link", repr(name))
        elif member.flag_bits & _ENCRYPTED:
            self._surprises.fault("archive: a member is encrypted", repr(name))
        elif not member.is_dir() and not _DEBRIS.search(name):
            found = _CASE.fullmatch(name)
            table = None if found is None else _TABLE_OF_FILE.get(found[2])
            if found is None or table is None:
                self._surprises.note("archive: a member that no tool reads; left out", repr(name))
            elif (found[1], table.name) in self._members:
                self._surprises.fault(f"{table.file}: is there twice", f"id_{found[1]}: {name!r}")
            else:
                self._members[found[1], table.name] = member

    def _has_columns(self, header: Sequence[str], table: Table, where: str) -> bool:
        for name in sorted({name for name in header if header.count(name) > 1}):
            self._surprises.fault(f"{table.file}: column {name!r} is there twice", where)
        for column in table.columns:
            if column.name not in header:
                rule = f"{table.file}: column {column.name!r} is missing"
                if column.required:
                    self._surprises.fault(rule, f"{where} has {', '.join(header) or 'no header'}")
                else:
                    self._surprises.note(f"{rule}; stored as empty", where)
        for name in sorted(set(header) - set(table.column_names)):
            self._surprises.note(f"{table.file}: column {name!r} is not read; left out", where)
        return all(column.name in header for column in table.columns if column.required) and len(set(header)) == len(
            header
        )
