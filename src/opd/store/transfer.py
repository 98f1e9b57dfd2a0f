"""Files that somebody lists by size and hash: whether a folder holds them, and the download of those that it does not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from opd.errors import RunError, StoreUnavailable
from opd.store.base import Store
from opd.store.durable import hash_file

# Transfers wait for the network and sha256 releases the GIL; more threads than this only compete for the disk.
NUM_THREADS = 4
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class ListedFile:
    """One file: `path` relative to its folder with `/`, `size` in bytes, `sha256` in hex, or None where nobody knows it."""

    path: str
    size: int
    sha256: str | None


F = TypeVar("F", bound=ListedFile)
OnDone = Callable[[ListedFile], object]


def find_problem(folder: Path, file: ListedFile) -> str | None:
    """What is wrong with one file on disk, None if it is as listed."""
    try:
        return _compare(folder, file)
    except OSError as error:  # a bad sector: another copy may do
        return f"{file.path} cannot be read: {error}"


def _compare(folder: Path, file: ListedFile) -> str | None:
    """As `find_problem`; raises OSError for a file that cannot be read."""
    path = folder / file.path
    try:
        if not path.is_file():
            return f"{file.path} is missing"
        if (size := path.stat().st_size) != file.size:
            return f"{file.path} has {size} bytes, the manifest says {file.size}"
        if file.sha256 is not None and hash_file(path)[1] != file.sha256:
            return f"{file.path} does not have the manifest's sha256"
    except FileNotFoundError:  # another process on this disk has moved it in between
        return f"{file.path} is missing"
    return None


def find_problems(folder: Path, files: Sequence[F], *, on_done: OnDone = lambda file: None) -> dict[F, str]:
    """What is wrong with files on disk, in order; those that are as listed are left out."""
    return _problems(lambda file: find_problem(folder, file), files, on_done)


def bring(store: Store, files: Sequence[F], folder: Path, *, on_done: OnDone = lambda file: None) -> dict[F, str]:
    """Make a folder hold listed files: one that is there as listed stays, any other is downloaded and verified.

    Args:
        on_done: called with each file that was looked at, in the threads of the transfer.

    Returns:
        Why files are still not as listed, in order; empty if all are.

    Raises:
        StoreError: the store went away, or what came from it cannot be read here, which says nothing about the store's copy;
            what has arrived whole stays.
    """

    def one(file: ListedFile) -> str | None:
        if find_problem(folder, file) is None:
            return None
        try:
            store.get_file(file.path, folder / file.path)
        except FileNotFoundError:
            return f"{file.path} is missing in {store.url}"
        except FileExistsError as error:
            # Of `mkdir`: a file lies there, or the folder was there and another process swept it away before it was looked at.
            return f"{error.filename} is no folder" if os.path.exists(error.filename) else f"{folder} was swept away"
        try:
            return _compare(folder, file)
        except OSError as error:
            raise StoreUnavailable(f"{file.path} of {store.url} has arrived and cannot be read: {error}") from error

    return _problems(one, files, on_done)


def in_threads(call: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """`[call(item) for item in items]`, `NUM_THREADS` at a time.

    After an error of a call no further one begins, and those under way are waited for. What interrupts the caller (a
    signal's exception) waits for nothing.
    """
    pool = ThreadPoolExecutor(NUM_THREADS)
    try:
        return list(pool.map(call, items))
    except (RunError, OSError):
        pool.shutdown(cancel_futures=True)
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _problems(check: Callable[[F], str | None], files: Sequence[F], on_done: OnDone) -> dict[F, str]:
    def checked(file: F) -> str | None:
        problem = check(file)
        on_done(file)
        return problem

    found = zip(files, in_threads(checked, files), strict=True)
    return {file: problem for file, problem in found if problem}
