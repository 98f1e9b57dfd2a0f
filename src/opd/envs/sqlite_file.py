"""A SQLite file of a database folder: written to the same bytes each time, opened so that nothing can write it."""

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

_VERSION_OFFSET = 96
"""SQLite writes the version of the library that wrote the file there; it is informational only."""
_READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ}


@contextmanager
def written(path: Path, create: Iterable[str]) -> Iterator[sqlite3.Connection]:
    """A new file with the tables of `create`, in one transaction; closed and on disk after the block."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA page_size = 4096")
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("BEGIN")
        for statement in create:
            connection.execute(statement)
        yield connection
        connection.execute("COMMIT")
    finally:
        connection.close()
    with path.open("r+b") as file:
        file.seek(_VERSION_OFFSET)
        file.write(bytes(4))
        os.fsync(file.fileno())


def open_read_only(path: Path) -> sqlite3.Connection:
    """A connection that takes no lock and looks for no journal (`immutable=1`), so any number of processes may read, from
    a read-only mount too. SQLite itself refuses every statement but SELECT (authorizer), and writing twice over
    (`mode=ro`, `query_only`).
    """
    uri = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=True, cached_statements=32)
    connection.execute("PRAGMA query_only = ON")
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.set_authorizer(_only_reads)
    return connection


def _only_reads(action: int, *_: str | None) -> int:
    return sqlite3.SQLITE_OK if action in _READS else sqlite3.SQLITE_DENY
