"""What survives a power cut: a file's bytes, its name in its folder, and the folders above it, each synced by itself."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path


def fsync_file(path: Path) -> None:
    """Has the disk hold a file's bytes; not yet its name."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_folder(folder: Path) -> None:
    """Has the disk hold the names in `folder`: what was created, renamed, linked or removed there."""
    fsync_file(folder)


def make_folder(folder: Path) -> None:
    """Creates a folder and its missing parents, each name of them synced."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in reversed(missing):
        fsync_folder(path.parent)


def fsync_names(root: Path, paths: Iterable[str], *, num_parents: int = 0) -> None:
    """Has the disk hold the names of files below a folder that somebody else created, and of the folders on the way.

    Args:
        paths: files relative to `root`, with `/`.
        num_parents: how many folders above `root` may be as new as it is.
    """
    folders = {parent for path in paths for parent in (root / path).parents if parent.is_relative_to(root)}
    deepest_first = sorted(folders, key=lambda folder: len(folder.parts), reverse=True)
    for folder in [*deepest_first, *root.absolute().parents[:num_parents]]:
        fsync_folder(folder)


def hash_file(path: Path, *, sync: bool = False) -> tuple[int, str]:
    """Size in bytes and sha256 of a file; with `sync` its bytes are on the disk when this returns."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        if sync:
            os.fsync(file.fileno())
        return file.tell(), digest
