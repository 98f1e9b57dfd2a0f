"""A database folder of any environment: SQLite files that no tool can write, and the manifest that describes them."""

import hashlib
import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, ClassVar, Generic, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from opd.store.durable import hash_file
from opd_envs import Language

MANIFEST_FILE = "manifest.json"
_VERSION_OFFSET = 96
"""SQLite writes the version of the library that wrote the file there; it is informational only."""
_READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ}
_ID_DIGITS = 16

PlainName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=100)]


class ManifestError(ValueError):
    """A folder that is no tool database, or not the database that its manifest describes."""


class FileRecord(BaseModel):
    """One file of the folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    num_bytes: int = Field(ge=1)


class FolderManifest(BaseModel):
    """Fields of every `manifest.json`; an environment adds `kind`, `format_version` and the folder's origin."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    MADE_BY: ClassVar[str]
    """Command that makes a folder, for messages."""

    num_rows: dict[str, int]
    files: dict[PlainName, FileRecord]
    """By plain name: a manifest cannot name a file outside its folder."""

    @property
    def database_id(self) -> str:
        """The beginning of the SHA-256 of the manifest's text: it names this very database."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:_ID_DIGITS]

    @property
    def text(self) -> str:
        """The file's exact content: sorted, so that equal manifests are equal bytes."""
        return json.dumps(self.model_dump(), indent=2, sort_keys=True) + "\n"


M = TypeVar("M", bound=FolderManifest)


@contextmanager
def written(path: Path, create: Iterable[str]) -> Iterator[sqlite3.Connection]:
    """Yield a new file with the tables of `create`, in one transaction; the file is on disk after the block."""
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
    """Return a connection without locks or a journal (`immutable=1`): any number of processes may read one mount.

    An authorizer allows SELECT alone; `mode=ro` and `query_only` forbid writes once more.
    """
    uri = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=True, cached_statements=32)
    connection.execute("PRAGMA query_only = ON")
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in _READS else sqlite3.SQLITE_DENY)
    return connection


def read_manifest(folder: Path, model: type[M], *, compare_hashes: bool = False) -> M:
    """Read the manifest, and compare its files' sizes.

    Args:
        folder: the database folder.
        model: the environment's own manifest.
        compare_hashes: compare each file's SHA-256 as well, which reads all of them.

    Raises:
        ManifestError: the manifest is missing, unreadable or of another environment or version; a file is missing or
            another one.
    """
    path = folder / MANIFEST_FILE
    if not path.is_file():
        raise ManifestError(
            f"agent.database_dir = {folder}: has no {MANIFEST_FILE}; make a database with "
            f"`{model.MADE_BY} --out {folder}`, or give the folder of one"
        )
    try:
        manifest = model.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        raise ManifestError(
            f"{path}: {'.'.join(map(str, first['loc'])) or 'manifest'}: {first['msg']}; give a folder that "
            f"`{model.MADE_BY}` of this version made, or the agent.toolset of this folder"
        ) from error
    for name, record in manifest.files.items():
        file = folder / name
        found = file.stat().st_size if file.is_file() else None
        if found != record.num_bytes:
            fault = "is missing" if found is None else f"has {found} bytes, its manifest says {record.num_bytes}"
        elif compare_hashes and (sha256 := hash_file(file)[1]) != record.sha256:
            fault = f"has SHA-256 {sha256}, its manifest says {record.sha256}"
        else:
            continue
        raise ManifestError(f"{file}: {fault}; copy the whole folder again")
    return manifest


class DatabaseFolder(Generic[M]):
    """The folder's SQLite files through read-only connections; for one thread."""

    MANIFEST: type[M]
    FILES: Mapping[Language, str]
    """Names by language; the manifest says which are there."""

    def __init__(self, folder: str | Path) -> None:
        """Open a folder.

        Raises:
            ManifestError: the folder is no such database, or a file is missing or has another size.
        """
        root = Path(folder)
        self.manifest = read_manifest(root, self.MANIFEST)
        there = {language: root / name for language, name in self.FILES.items() if name in self.manifest.files}
        self._connections = {language: open_read_only(path) for language, path in there.items()}

    @classmethod
    def verify(cls, folder: Path) -> None:
        """Compare each file's SHA-256 with its manifest's."""
        read_manifest(folder, cls.MANIFEST, compare_hashes=True)

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections.values():
            connection.close()


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a scratch folder that takes the name of `folder` if the block ends well, and is deleted if not.

    Raises:
        FileExistsError: the folder has content.
    """
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"--out = {folder}: is not empty; give a new folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        yield scratch
        scratch.chmod(0o755)
        scratch.rename(folder)  # replaces an empty folder
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def write_manifest(folder: Path, model: type[M], names: Iterable[str], **facts: object) -> M:
    """Write the manifest of the named files and of an environment's own facts: the folder's last file."""
    files: dict[str, FileRecord] = {}
    for name in names:
        num_bytes, sha256 = hash_file(folder / name)
        files[name] = FileRecord(sha256=sha256, num_bytes=num_bytes)
    manifest = model.model_validate({"files": files, **facts})
    (folder / MANIFEST_FILE).write_text(manifest.text, encoding="utf-8")
    return manifest
