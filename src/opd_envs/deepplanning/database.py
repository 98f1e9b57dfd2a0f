"""The imported benchmark as a read-only database, one case at a time: every query has entries of its own."""

import sqlite3
from collections.abc import Mapping
from typing import ClassVar, Literal

from opd_envs import LANGUAGES, Language
from opd_envs.database_folder import DatabaseFolder, FolderManifest
from opd_envs.deepplanning.layout import TABLES, Table, case_name

DATABASE_FILES: Mapping[Language, str] = {language: f"deepplanning_{language}.sqlite" for language in LANGUAGES}
CREATE = tuple(
    f"CREATE TABLE {table.name} (case_id TEXT NOT NULL, line INTEGER NOT NULL, "
    + ", ".join(f"{name} TEXT NOT NULL" for name in table.columns)
    + f", PRIMARY KEY ({', '.join(('case_id', *table.key, 'line'))})) STRICT, WITHOUT ROWID"
    for table in TABLES
)


class Manifest(FolderManifest):
    """`manifest.json` of an imported folder; `num_rows` by `LANGUAGE.TABLE`."""

    MADE_BY: ClassVar[str] = "python -m opd_envs.deepplanning.make_database"

    kind: Literal["deepplanning"] = "deepplanning"
    format_version: Literal[1] = 1
    """Raise it with each change of tables or columns, so that an older folder is rejected."""
    archives: dict[Language, str]
    """SHA-256 of each imported archive."""
    cases: dict[Language, tuple[str, ...]]

    @property
    def case_names(self) -> frozenset[str]:
        """Every case as a row's `extra_info.case_id` names it."""
        return frozenset(case_name(language, case) for language, cases in self.cases.items() for case in cases)


def insert_statement(table: Table) -> str:
    """Return the SQL that takes case_id, line and the table's columns."""
    return f"INSERT INTO {table.name} VALUES ({', '.join('?' * (2 + len(table.columns)))})"


class Case:
    """The entries of one query; every value is the text of the published file."""

    def __init__(self, connection: sqlite3.Connection, language: Language, case_id: str) -> None:
        self._connection = connection
        self._case_id = case_id
        self.language = language

    def rows(self, table: Table, **wanted: str) -> list[dict[str, str]]:
        """Return the rows whose columns are exactly as `wanted`, in the order of the file."""
        where = " AND ".join(f"{name} = ?" for name in ("case_id", *wanted))
        select = f"SELECT {', '.join(table.columns)} FROM {table.name} WHERE {where} ORDER BY line"
        found = self._connection.execute(select, (self._case_id, *wanted.values()))
        return [dict(zip(table.columns, values, strict=True)) for values in found]


class Database(DatabaseFolder[Manifest]):
    """The cases of an imported folder."""

    MANIFEST = Manifest
    FILES = DATABASE_FILES

    def in_case(self, name: str) -> Case:
        """Return the entries of a case, named as in a row's `extra_info.case_id`.

        Raises:
            KeyError: the database has no such case.
        """
        for language, connection in self._connections.items():
            number = name.removeprefix(f"{language}/")
            if name == case_name(language, number) and number in self.manifest.cases[language]:
                return Case(connection, language, number)
        raise KeyError(f"extra_info.case_id = {name}: the database has no such case")
