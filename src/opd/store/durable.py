"""Syncs for a power cut: a file's bytes, its name in its folder, and the folders above it need one each."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path

# Folders without the right to sync, and file systems whose folders have no sync, answer one of these.
NO_SYNC_ERRNOS = {errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP}


def fsync_file(path: Path) -> None:
    """Sync a file's bytes, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


fsync_folder = fsync_file


def make_folder(folder: Path, synced: set[Path] | None = None) -> None:
    """Create a folder and its missing parents, and sync the names of all folders above it.

    A process that created these folders may have been killed before it synced their names.

    Args:
        synced: folders whose names this process has synced; the new ones are added.
    """
    synced = set() if synced is None else synced
    if folder in synced and folder.exists():
        return
    missing = list(takewhile(lambda path: not path.exists(), (folder, *folder.parents)))
    folder.mkdir(parents=True, exist_ok=True)
    above = [path for path in (folder, *folder.parents[:-1]) if path in missing or path not in synced]
    for path in reversed(above):
        try:
            fsync_folder(path.parent)
        except OSError as error:  # far above the folders of the run
            if path in missing or error.errno not in NO_SYNC_ERRNOS:
                raise
        synced.add(path)


def fsync_names(root: Path, paths: Iterable[str]) -> None:
    """Sync the names of files below `root` that another library created, and of all folders above them."""
    folders = {parent for path in paths for parent in (root / path).parents if parent.is_relative_to(root)}
    deepest_first = sorted(folders, key=lambda folder: len(folder.parts), reverse=True)
    for folder in deepest_first:
        fsync_folder(folder)
    make_folder(root.absolute())


def hash_file(path: Path, *, sync: bool = False) -> tuple[int, str]:
    """Return a file's size in bytes and its sha256; with `sync` its bytes are synced, too."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        if sync:
            os.fsync(file.fileno())
        return file.tell(), digest
