"""A published archive: read member by member without ever being unpacked, so that no name in it reaches the disk."""

from __future__ import annotations

import gzip
import re
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import IO, NamedTuple
from zlib import error as ZlibError

from opd_envs.deepplanning.layout import (
    ATTRACTIONS,
    DISTANCES,
    FLIGHTS,
    FORMS,
    HOTELS,
    LOCATIONS,
    RESTAURANTS,
    TABLES,
    TRAINS,
    CaseRows,
    Layout,
    Surprises,
    Table,
    point,
)
from opd_envs.deepplanning.readers import Rows, rows_of

_MAX_SHOWN_CHARS = 60
_COLUMN_OF_FIELD = {
    "hotel_name": (HOTELS, "name"),
    "restaurant_name": (RESTAURANTS, "restaurant_name"),
    "attraction_names": (ATTRACTIONS, "attraction_name"),
    "outbound_train_no": (TRAINS, "train_no"),
    "inbound_train_no": (TRAINS, "train_no"),
    "outbound_flight_no": (FLIGHTS, "flight_no"),
    "inbound_flight_no": (FLIGHTS, "flight_no"),
}
"""Where the entry is that a constraint's field names."""


def read_cases(archive: Archive, surprises: Surprises) -> Iterator[tuple[str, dict[str, Rows]]]:
    """Every case with its rows by table, checked; in the order of the ids."""
    layout = archive.layout
    if not archive.cases:
        file = layout.tables[0].file
        surprises.fault(f"archive: no file of the form {layout.folder('N')}/{file} is in it", archive.path.name)
    for case in archive.cases:
        rows = {table.name: archive.rows(case, table) for table in layout.tables}
        where = layout.folder(case)
        for table in layout.tables:
            _check_values(where, table, rows[table.name], surprises)
            _check_unique(where, table, rows[table.name], surprises)
        layout.check(where, rows, surprises)
        yield case, rows


def _check_named(where: str, rows: CaseRows, named: Iterable[tuple[str, str]], surprises: Surprises) -> None:
    """Whether the entries that a query's constraints name, by the constraint's field, are in its case."""
    for field, name in named:
        table, column = _COLUMN_OF_FIELD[field]
        if all(row[column] != name for _, row in rows[table.name]):
            surprises.note(f"{table.file}: an entry that the query's {field} names is missing", f"{where}: {name!r}")


def _check_values(where: str, table: Table, rows: Rows, surprises: Surprises) -> None:
    for column in table.columns:
        pattern, rule = FORMS[column.form]
        for line, row in rows:
            value = row[column.name]
            if (value or column.required) and pattern.fullmatch(value) is None:
                surprises.note(f"{table.file}: column {column.name!r} {rule}", place(where, line, value))


def _check_unique(where: str, table: Table, rows: Rows, surprises: Surprises) -> None:
    seen: set[tuple[str, ...]] = set()
    for line, row in rows:
        key = tuple(row[name] for name in table.unique)
        if key in seen:
            surprises.note(f"{table.file}: {', '.join(table.unique)} twice in one case", place(where, line, *key))
        seen.add(key)


def _check_points(where: str, rows: CaseRows, surprises: Surprises) -> None:
    """The road route tool finds coordinates by their very text: a place that is in no row of the matrix has no route."""
    known = {row[end] for _, row in rows[DISTANCES.name] for end in ("origin", "destination")}
    for line, row in rows[LOCATIONS.name]:
        if point(row) not in known:
            surprises.note(f"{LOCATIONS.file}: a place is not in {DISTANCES.file}", place(where, line, row["poi_name"]))
    places = {point(row) for _, row in rows[LOCATIONS.name]}
    for line, row in rows[RESTAURANTS.name]:
        asked = point(row, "query_")
        if asked not in places:
            surprises.note(f"{RESTAURANTS.file}: query coordinates of no place", place(where, line, asked))


def place(where: str, line: int, *values: str) -> str:
    """A line of a case's file with some of its values, for messages."""
    shown: Sequence[str] = [
        value if len(value) <= _MAX_SHOWN_CHARS else f"{value[:_MAX_SHOWN_CHARS]}…" for value in values
    ]
    return f"{where} line {line}: {', '.join(map(repr, shown))}"


TRAVEL = Layout(
    TABLES,
    "id_",
    re.compile(r"(?:[^/]+/)*id_([A-Za-z0-9_-]{1,40})/([a-z]+/[a-z_]+\.csv)"),
    _check_points,
    _check_named,
)


MAX_MEMBERS = 100_000
MAX_MEMBER_BYTES = 512 * 2**20
MAX_TOTAL_BYTES = 16 * 2**30
"""Unpacked. The archive's own figures, beyond which no byte is read; of a compressed tar what it unpacks to."""
_ENCRYPTED = 0x1
_DEBRIS = re.compile(r"(^|/)(__MACOSX/|\.DS_Store$|Thumbs\.db$|\._)")
"""What operating systems leave in archives."""
_COPIED_BYTES = 2**20


class ArchiveError(ValueError):
    """The archive cannot be read at all."""


class _Member(NamedTuple):
    """One entry of either kind of archive."""

    name: str
    num_bytes: int
    unfit: str | None
    """Why its bytes are not to be read (a link, encrypted, a device); None: it is a plain file."""
    open: Callable[[], IO[bytes] | None]


class Archive:
    """The files of one part by case and table.

    Args:
        path: a zip archive, or a tar with gzip (`.tar.gz`).
        layout: which files of which cases are read.
        surprises: what members are unsafe or unexpected goes there.

    Raises:
        ArchiveError: no such file, no archive of that kind, or one beyond the limits.
    """

    def __init__(self, path: Path, layout: Layout, surprises: Surprises) -> None:
        self.path = path
        self.layout = layout
        self._surprises = surprises
        self._tables = {table.file: table for table in layout.tables}
        self._members: dict[tuple[str, str], _Member] = {}
        with ExitStack() as opened:
            try:
                members = (_tar_members if path.name.endswith(".tar.gz") else _zip_members)(path, opened)
            except (OSError, zipfile.BadZipFile, tarfile.TarError, ZlibError, EOFError) as error:
                kind = "tar.gz" if path.name.endswith(".tar.gz") else "zip"
                raise ArchiveError(f"{path}: no readable {kind} archive ({error})") from error
            self._refuse_bombs(members)
            self._opened = opened.pop_all()
        for member in members:
            self._take(member)

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._opened.close()

    @property
    def cases(self) -> list[str]:
        """Ids of the cases, numbers in their order."""
        return sorted({case for case, _ in self._members}, key=lambda case: (len(case), case))

    def rows(self, case: str, table: Table) -> Rows:
        """The rows of a case's file with their line numbers, every column of the table in them; faults end it early."""
        return list(self._rows(case, table))

    def _rows(self, case: str, table: Table) -> Iterator[tuple[int, dict[str, str]]]:
        member = self._members.get((case, table.name))
        where = self.layout.folder(case)
        if member is None:
            self._surprises.note(f"{table.file}: no such file; the case has no {table.name}", where)
            return
        try:
            raw = member.open()
            if raw is not None:
                with raw:
                    yield from rows_of(raw, table, where, self._surprises)
        except (zipfile.BadZipFile, tarfile.TarError, ZlibError, EOFError, NotImplementedError, OSError) as error:
            self._surprises.fault(f"{table.file}: cannot be unpacked", f"{where}: {error}")

    def _refuse_bombs(self, members: list[_Member]) -> None:
        for value, limit, what in (
            (len(members), MAX_MEMBERS, "members"),
            (sum(member.num_bytes for member in members), MAX_TOTAL_BYTES, "bytes unpacked"),
            (max((member.num_bytes for member in members), default=0), MAX_MEMBER_BYTES, "bytes in one member"),
        ):
            if value > limit:
                raise _too_large(self.path, str(value), what, limit)

    def _take(self, member: _Member) -> None:
        name = member.name
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name:
            self._surprises.fault("archive: a member's name leads out of it", repr(name))
        elif member.unfit is not None:
            self._surprises.fault(f"archive: a member is {member.unfit}", repr(name))
        elif not _DEBRIS.search(name):
            found = self.layout.member.fullmatch(name)
            table = None if found is None else self._tables.get(found[2])
            if found is None or table is None:
                self._surprises.note("archive: a member that no tool reads; left out", repr(name))
            elif (found[1], table.name) in self._members:
                self._surprises.fault(f"{table.file}: is there twice", f"{self.layout.folder(found[1])}: {name!r}")
            else:
                self._members[found[1], table.name] = member


def _zip_members(path: Path, opened: ExitStack) -> list[_Member]:
    archive = opened.enter_context(zipfile.ZipFile(path))

    def unfit(entry: zipfile.ZipInfo) -> str | None:
        if stat.S_ISLNK(entry.external_attr >> 16):
            return "a link"
        return "encrypted" if entry.flag_bits & _ENCRYPTED else None

    return [
        _Member(entry.filename, entry.file_size, unfit(entry), partial(archive.open, entry))
        for entry in archive.infolist()
        if not entry.is_dir()
    ]


def _tar_members(path: Path, opened: ExitStack) -> list[_Member]:
    """Decompressed once, into a file without a name: cases are read in their own order, which gzip cannot do."""
    plain = opened.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - closed with the archive
    with gzip.open(path) as packed:
        while block := packed.read(_COPIED_BYTES):
            if plain.tell() + len(block) > MAX_TOTAL_BYTES:
                raise _too_large(path, "more", "bytes unpacked", MAX_TOTAL_BYTES)
            plain.write(block)
    plain.seek(0)
    archive = opened.enter_context(tarfile.open(fileobj=plain, mode="r:"))  # noqa: SIM115 - likewise

    def unfit(entry: tarfile.TarInfo) -> str | None:
        if entry.issym() or entry.islnk():
            return "a link"
        return None if entry.isreg() and not entry.issparse() else "no plain file"

    members: list[_Member] = []
    for entry in archive:
        if len(members) > MAX_MEMBERS:
            break
        if not entry.isdir():
            members.append(_Member(entry.name, entry.size, unfit(entry), partial(archive.extractfile, entry)))
    return members


def _too_large(path: Path, value: str, what: str, limit: int) -> ArchiveError:
    return ArchiveError(f"{path}: has {value} {what}, at most {limit} are read")
