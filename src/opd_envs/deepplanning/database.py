"""The imported benchmark as a read-only database: a case at a time, since every query has entries of its own."""

import sqlite3
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from pydantic import ConfigDict

from opd_envs import database_folder
from opd_envs.database_folder import FolderManifest, ManifestError, open_read_only
from opd_envs.deepplanning.layout import Table, case_name
from opd_envs.deepplanning.parts import PARTS, Part, part_of
from opd_envs.travel.entries import Language

FORMAT_VERSION = 1
"""Raised whenever a table or the meaning of a column changes: an older folder is then refused, not misread."""
DATABASE_FILES: Mapping[Part, str] = {part: f"deepplanning_{part}.sqlite" for part in PARTS}


class Manifest(FolderManifest):
    """`manifest.json`; `num_rows` by `PART.TABLE`."""

    model_config = ConfigDict(extra="forbid")

    MADE_BY: ClassVar[str] = "python -m opd_envs.deepplanning import"
    KIND: ClassVar[str] = "deepplanning"
    VERSION: ClassVar[int | None] = FORMAT_VERSION

    kind: str = KIND
    archives: dict[Part, str]
    """SHA-256 of the published archive of each part that was imported."""
    cases: dict[Part, tuple[str, ...]]
    num_notes: dict[Part, int]
    """Values that `check` remarks on and that were imported as they stand."""

    @property
    def case_names(self) -> frozenset[str]:
        """Every case as a row's `extra_info.case_id` names it."""
        return frozenset(case_name(part, case) for part, cases in self.cases.items() for case in cases)


def create_statements(tables: Iterable[Table]) -> tuple[str, ...]:
    """The SQL of the tables: published values as text, in the order of the file where a key is there twice."""
    return tuple(
        f"CREATE TABLE {table.name} (case_id TEXT NOT NULL, line INTEGER NOT NULL, "
        + ", ".join(f"{name} TEXT NOT NULL" for name in table.column_names)
        + f", PRIMARY KEY ({', '.join(('case_id', *table.key, 'line'))})) STRICT, WITHOUT ROWID"
        for table in tables
    )


def insert_statement(table: Table) -> str:
    """Takes case_id, line and the table's columns."""
    return f"INSERT INTO {table.name} VALUES ({', '.join('?' * (2 + len(table.columns)))})"


@lru_cache(maxsize=256)
def _select(table: Table, wanted: tuple[str, ...]) -> str:
    unknown = set(wanted) - set(table.column_names)
    if unknown:
        raise KeyError(f"{table.name} has no column {', '.join(sorted(unknown))}")
    where = "".join(f" AND {name} = ?" for name in wanted)
    return f"SELECT {', '.join(table.column_names)} FROM {table.name} WHERE case_id = ?{where} ORDER BY line"


class Case:
    """The entries of one query; every value is the text of the published file."""

    def __init__(self, connection: sqlite3.Connection, part: Part, case_id: str) -> None:
        self._connection = connection
        self._case_id = case_id
        self.language: Language = "zh" if part == "zh" else "en"

    def rows(self, table: Table, **wanted: str) -> list[dict[str, str]]:
        """The rows whose columns are exactly as `wanted`, in the order of the file."""
        found = self._connection.execute(_select(table, tuple(wanted)), (self._case_id, *wanted.values()))
        return [dict(zip(table.column_names, values, strict=True)) for values in found]


class Database:
    """The folder's SQLite files behind read-only connections; for one thread."""

    def __init__(self, connections: Mapping[Part, sqlite3.Connection], manifest: Manifest) -> None:
        self._connections = connections
        self.manifest = manifest

    def in_case(self, name: str) -> Case:
        """The entries of a case, named as in a row's `extra_info.case_id`.

        Raises:
            KeyError: the database has no such case.
        """
        if name not in self.manifest.case_names:
            raise KeyError(f"extra_info.case_id = {name}: the database has no such case")
        part = part_of(name)
        return Case(self._connections[part], part, name.removeprefix(f"{part}/"))

    def close(self) -> None:
        """Closes the connections."""
        for connection in self._connections.values():
            connection.close()


def open_database(folder: str | Path) -> Database:
    """Opens an imported folder for reading.

    Raises:
        ManifestError: the folder is no such database or is damaged (hashes are not compared: `verify_database`).
    """
    root = Path(folder)
    manifest = database_folder.read_manifest(root, Manifest)
    files = {part: DATABASE_FILES[part] for part in manifest.cases}
    missing = [name for name in files.values() if name not in manifest.files]
    if missing:
        raise ManifestError(f"{root}: its manifest lists no {', '.join(missing)}; make the database anew")
    return Database({part: open_read_only(root / name) for part, name in files.items()}, manifest)


def verify_database(folder: Path) -> Manifest:
    """See `database_folder.verify_folder`."""
    return database_folder.verify_folder(folder, Manifest)
