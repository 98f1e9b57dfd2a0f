"""The database folder's manifest: which files belong to it, their size and SHA-256, and what made them."""

import hashlib
import json
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from opd.store.durable import hash_file

MANIFEST_FILE = "manifest.json"
FORMAT_VERSION = 1
"""Raised whenever a table or the meaning of a column changes: an older folder is then refused, not misread."""
_ID_DIGITS = 16

PlainName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=100)]


class ManifestError(ValueError):
    """The folder is no tool database, or not the one that its manifest describes."""


class FileRecord(BaseModel):
    """One file of the folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    num_bytes: int = Field(ge=1)


class Manifest(BaseModel):
    """`manifest.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format_version: int
    seed: int
    num_cities: int
    num_rows: dict[str, int]
    """By table; every language has the same."""
    files: dict[PlainName, FileRecord]
    """By plain name: a manifest cannot name a file outside its folder."""

    @property
    def database_id(self) -> str:
        """Names this very database: the beginning of the SHA-256 of all that the manifest says."""
        return hashlib.sha256(manifest_text(self).encode()).hexdigest()[:_ID_DIGITS]


def record_of(path: Path) -> FileRecord:
    """The record of a file as it is now."""
    num_bytes, sha256 = hash_file(path)
    return FileRecord(sha256=sha256, num_bytes=num_bytes)


def manifest_text(manifest: Manifest) -> str:
    """The file's exact content: sorted, so that equal manifests are equal bytes."""
    return json.dumps(manifest.model_dump(), indent=2, sort_keys=True) + "\n"


def read_manifest(folder: Path) -> Manifest:
    """Reads and checks the manifest, and that its files are there with their sizes; hashes nothing.

    Raises:
        ManifestError: no manifest, an unreadable one, another format version, a file missing or of another size.
    """
    path = folder / MANIFEST_FILE
    if not path.is_file():
        raise ManifestError(
            f"DATABASE_DIR = {folder}: holds no {MANIFEST_FILE}; make a database with "
            f"`python -m opd.agent.make_database --out {folder}`, or give the folder that holds one"
        )
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        raise ManifestError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    if manifest.format_version != FORMAT_VERSION:
        raise ManifestError(
            f"{path}: format_version = {manifest.format_version}: this version of opd reads {FORMAT_VERSION}; "
            "make the database anew"
        )
    for name, record in manifest.files.items():
        file = folder / name
        found = file.stat().st_size if file.is_file() else None
        if found != record.num_bytes:
            what = "is missing" if found is None else f"has {found} bytes, its manifest says {record.num_bytes}"
            raise ManifestError(f"{file}: {what}; copy the whole folder again")
    return manifest


def verify_folder(folder: Path) -> Manifest:
    """`read_manifest`, and every file's SHA-256: once per pod or pool, since it reads everything.

    Raises:
        ManifestError: as `read_manifest`, or a file whose hash differs.
    """
    manifest = read_manifest(folder)
    for name, record in manifest.files.items():
        found = hash_file(folder / name)[1]
        if found != record.sha256:
            raise ManifestError(
                f"{folder / name}: has SHA-256 {found}, its manifest says {record.sha256}; copy the folder again"
            )
    return manifest
