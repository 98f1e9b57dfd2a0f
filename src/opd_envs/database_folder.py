"""A database folder of any environment: its manifest, its verification, how it is written whole and packed."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, ClassVar, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from opd.store.durable import hash_file

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


MANIFEST_FILE = "manifest.json"
_ID_DIGITS = 16

PlainName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=100)]


class ManifestError(ValueError):
    """The folder is no tool database, or not the one that its manifest describes."""


class FileRecord(BaseModel):
    """One file of the folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    num_bytes: int = Field(ge=1)


class FolderManifest(BaseModel):
    """What every `manifest.json` says; each environment's own adds what made the folder."""

    model_config = ConfigDict(frozen=True)

    MADE_BY: ClassVar[str] = "the command that made it"
    """How a folder is made, for messages."""
    KIND: ClassVar[str] = ""
    """What `kind` says in the file; the first environment's files have no such key."""
    VERSION: ClassVar[int | None] = None
    """The only `format_version` that is read; None: any."""

    format_version: int
    num_rows: dict[str, int]
    files: dict[PlainName, FileRecord]
    """By plain name: a manifest cannot name a file outside its folder."""

    @property
    def database_id(self) -> str:
        """Names this very database: the beginning of the SHA-256 of all that the manifest says."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:_ID_DIGITS]

    @property
    def text(self) -> str:
        """The file's exact content: sorted, so that equal manifests are equal bytes."""
        return json.dumps(self.model_dump(), indent=2, sort_keys=True) + "\n"


M = TypeVar("M", bound=FolderManifest)


def record_of(path: Path) -> FileRecord:
    """The record of a file as it is now."""
    num_bytes, sha256 = hash_file(path)
    return FileRecord(sha256=sha256, num_bytes=num_bytes)


def kind_of(folder: Path) -> str | None:
    """`kind` of the folder's manifest, empty where that names none; None where there is no manifest."""
    try:
        found = json.loads((folder / MANIFEST_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return str(found.get("kind", "")) if isinstance(found, dict) else None


def read_manifest(folder: Path, model: type[M]) -> M:
    """Reads and checks the manifest, and that its files are there with their sizes; hashes nothing.

    Args:
        folder: the database folder.
        model: the environment's own manifest; `FolderManifest` reads that of any.

    Raises:
        ManifestError: no manifest, an unreadable one, one of another environment or format version, a file missing or
            of another size.
    """
    path = folder / MANIFEST_FILE
    if not path.is_file():
        raise ManifestError(
            f"DATABASE_DIR = {folder}: holds no {MANIFEST_FILE}; make a database with "
            f"`{model.MADE_BY} --out {folder}`, or give the folder that holds one"
        )
    kind = kind_of(folder)
    if model.VERSION is not None and kind not in (None, model.KIND):
        raise ManifestError(
            f"{path}: kind = {kind or '(none)'}: these tools read {model.KIND or '(none)'}; give a folder that "
            f"`{model.MADE_BY}` made, or the agent.toolset that fits this one"
        )
    try:
        manifest = model.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        raise ManifestError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    if model.VERSION not in (None, manifest.format_version):
        raise ManifestError(
            f"{path}: format_version = {manifest.format_version}: this version of opd reads {model.VERSION}; "
            "make the database anew"
        )
    for name, record in manifest.files.items():
        file = folder / name
        found = file.stat().st_size if file.is_file() else None
        if found != record.num_bytes:
            what = "is missing" if found is None else f"has {found} bytes, its manifest says {record.num_bytes}"
            raise ManifestError(f"{file}: {what}; copy the whole folder again")
    return manifest


def verify_folder(folder: Path, model: type[M]) -> M:
    """`read_manifest`, and every file's SHA-256: once per pod or pool, since it reads everything.

    Raises:
        ManifestError: as `read_manifest`, or a file whose hash differs.
    """
    manifest = read_manifest(folder, model)
    for name, record in manifest.files.items():
        found = hash_file(folder / name)[1]
        if found != record.sha256:
            raise ManifestError(
                f"{folder / name}: has SHA-256 {found}, its manifest says {record.sha256}; copy the folder again"
            )
    return manifest


@contextmanager
def new_folder(folder: Path, *, replace: bool = False) -> Iterator[Path]:
    """A scratch folder beside `folder` that takes its name when the block ends well, and is gone when it does not.

    Args:
        replace: a folder that holds a manifest is removed just before the new one takes its name (`--force`).

    Raises:
        FileExistsError: the folder is there and not empty, and not to be replaced.
    """
    is_replaced = replace and (folder / MANIFEST_FILE).is_file()
    if not is_replaced and folder.exists() and any(folder.iterdir()):
        raise FileExistsError(
            f"--out = {folder}: is not empty; give a new folder, or --force to replace the database in it"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        yield scratch
        scratch.chmod(0o755)
        if is_replaced:
            shutil.rmtree(folder)
        elif folder.exists():
            folder.rmdir()
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def write_manifest(folder: Path, manifest: FolderManifest) -> None:
    """Writes the manifest, the folder's last file."""
    (folder / MANIFEST_FILE).write_text(manifest.text, encoding="utf-8")


def write_archive(folder: Path, archive: Path) -> str:
    """Packs the folder's files as `.tar.gz`, the same bytes for the same files, and returns its SHA-256."""
    unfinished = archive.with_name(f".{archive.name}.{os.getpid()}.tmp")
    try:
        with (
            unfinished.open("wb") as raw,
            gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            for path in sorted(folder.iterdir()):
                member = tarfile.TarInfo(path.name)
                member.size, member.mode = path.stat().st_size, 0o444
                with path.open("rb") as file:
                    tar.addfile(member, file)
        unfinished.replace(archive)
    finally:
        unfinished.unlink(missing_ok=True)
    return hash_file(archive)[1]
