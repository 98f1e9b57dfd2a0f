"""What survives a power cut: a file's bytes, its name in its folder, and the folders above it, each synced by itself."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path

# Folders that may only be passed through, and file systems whose folders cannot be synced, say one of these.
NO_SYNC_ERRNOS = {errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP}


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


def make_folder(folder: Path, synced: set[Path] | None = None) -> None:
    """Creates a folder and its missing parents; its name is synced, and those of all folders above it.

    Also of those that were there: a process that made them may have been killed before it synced their names, and then all
    that is ever written there would go with them.

    Args:
        synced: folders whose names this process knows to be on the disk; the new ones are added.
    """
    synced = set() if synced is None else synced
    if folder in synced and folder.exists():
        return  # and all above it
    missing = list(
        takewhile(lambda path: not path.exists(), (folder, *folder.parents))
    )  # above one that is there all are
    folder.mkdir(parents=True, exist_ok=True)
    above = [path for path in (folder, *folder.parents[:-1]) if path in missing or path not in synced]
    for path in reversed(above):
        try:
            fsync_folder(path.parent)
        except OSError as error:  # far above, where nothing of ours was made
            if path in missing or error.errno not in NO_SYNC_ERRNOS:
                raise
        synced.add(path)


def fsync_names(root: Path, paths: Iterable[str]) -> None:
    """Has the disk hold the names of files below a folder that somebody else created, and of all folders above them.

    Args:
        paths: files relative to `root`, with `/`.
    """
    folders = {parent for path in paths for parent in (root / path).parents if parent.is_relative_to(root)}
    deepest_first = sorted(folders, key=lambda folder: len(folder.parts), reverse=True)
    for folder in deepest_first:
        fsync_folder(folder)
    make_folder(root.absolute())


def hash_file(path: Path, *, sync: bool = False) -> tuple[int, str]:
    """Size in bytes and sha256 of a file; with `sync` its bytes are on the disk when this returns."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        if sync:
            os.fsync(file.fileno())
        return file.tell(), digest
