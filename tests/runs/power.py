"""What a power cut would leave of a folder: bytes and names that were synced, as a disk may legally lose all others.

Seen through `os.fsync`: of a file it keeps the bytes of that moment, of a folder the names. Everything runs for real.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class Disk:
    """Synced state by inode, and what would be lost below a folder."""

    def __init__(self) -> None:
        self._files: dict[int, tuple[int, int]] = {}
        self._folders: dict[int, dict[str, int]] = {}

    def synced(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            folder = os.readlink(f"/proc/self/fd/{descriptor}")
            self._folders[status.st_ino] = {entry.name: entry.inode() for entry in os.scandir(folder)}
        else:
            self._files[status.st_ino] = (status.st_size, status.st_mtime_ns)

    def lost(self, root: Path) -> list[str]:
        """Files below `root` whose bytes, name, or a folder's name on the way to them the disk may not have."""
        found = []
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            status = path.stat()
            if self._files.get(status.st_ino) != (status.st_size, status.st_mtime_ns):
                found.append(f"bytes of {path.relative_to(root)}")
            for step in (path, *path.parents):
                if step == root:
                    break
                if self._folders.get(step.parent.stat().st_ino, {}).get(step.name) != step.stat().st_ino:
                    found.append(f"name of {step.relative_to(root)}")
        return list(dict.fromkeys(found))


@contextmanager
def watched_disk() -> Iterator[Disk]:
    disk, fsync = Disk(), os.fsync
    with pytest.MonkeyPatch.context() as patch:

        def recorded(descriptor: int) -> None:
            fsync(descriptor)
            disk.synced(descriptor)

        patch.setattr(os, "fsync", recorded)
        yield disk


@contextmanager
def at_each_seal(disk: Disk, root: Path) -> Iterator[list[list[str]]]:
    """While inside: what was lost below `root`, at each moment at which a COMPLETE is about to get its name."""
    moments: list[list[str]] = []
    replace = os.replace
    with pytest.MonkeyPatch.context() as patch:

        def looked_at(source: os.PathLike, target: os.PathLike, **options: object) -> None:
            if Path(target).name == "COMPLETE":
                moments.append([line for line in disk.lost(root) if Path(source).name not in line])
            replace(source, target, **options)

        patch.setattr(os, "replace", looked_at)
        yield moments
