"""Syncs for a power cut: a file's bytes, its name in its folder, and the folders above it need one each."""

import contextlib
import errno
import hashlib
import os
import uuid
from collections.abc import Callable, Iterator
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
    """Create a folder and its missing parents, and sync the names of all folders above it but for `synced`, to which they go.

    A process that created these folders may have been killed before it synced their names.
    """
    synced, is_there = set() if synced is None else synced, folder.exists()
    if folder == folder.parent or (is_there and folder in synced):
        return
    make_folder(folder.parent, synced)
    if not is_there:
        folder.mkdir(exist_ok=True)
    try:
        fsync_folder(folder.parent)
    except OSError as error:  # far above the folders of the run
        if not is_there or error.errno not in NO_SYNC_ERRNOS:
            raise
    synced.add(folder)


@contextlib.contextmanager
def placing(
    path: Path, synced: set[Path] | None = None, place: Callable[[Path, Path], object] = Path.replace
) -> Iterator[Path]:
    """Let the block write a hidden file, which gets its name at `path` only after its bytes are synced."""
    make_folder(path.parent, synced)
    partial = path.with_name(f".{path.name}.part-{uuid.uuid4().hex[:8]}")
    try:
        yield partial
        fsync_file(partial)
        place(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    fsync_folder(path.parent)


def hash_file(path: Path, *, sync: bool = False) -> tuple[int, str]:
    """Return a file's size in bytes and its sha256; with `sync` its bytes are synced, too."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        if sync:
            os.fsync(file.fileno())
        return file.tell(), digest
