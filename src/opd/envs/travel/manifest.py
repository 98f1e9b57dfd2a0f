"""The travel database's manifest: what made the folder (`opd.envs.database_folder` has the rest)."""

from pathlib import Path
from typing import ClassVar

from pydantic import ConfigDict

from opd.envs import database_folder
from opd.envs.database_folder import MANIFEST_FILE, FolderManifest, ManifestError

FORMAT_VERSION = 1
"""Raised whenever a table or the meaning of a column changes: an older folder is then refused, not misread."""


class Manifest(FolderManifest):
    """`manifest.json`; `num_rows` by table: every language has the same."""

    model_config = ConfigDict(extra="forbid")

    MADE_BY: ClassVar[str] = "python -m opd.agent.make_database"
    VERSION: ClassVar[int | None] = FORMAT_VERSION

    seed: int
    num_cities: int


def read_manifest(folder: Path) -> Manifest:
    """See `database_folder.read_manifest`."""
    return database_folder.read_manifest(folder, Manifest)


def verify_folder(folder: Path) -> Manifest:
    """See `database_folder.verify_folder`."""
    return database_folder.verify_folder(folder, Manifest)


__all__ = ["FORMAT_VERSION", "MANIFEST_FILE", "Manifest", "ManifestError", "read_manifest", "verify_folder"]
