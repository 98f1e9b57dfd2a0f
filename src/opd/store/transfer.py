"""Files listed by size and hash: the check that a folder holds them, and the download of the others."""

import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from opd.store.base import Store
from opd.store.durable import hash_file

# Transfers wait for the network and sha256 releases the GIL; more threads only compete for the disk.
NUM_THREADS = 4
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class ListedFile:
    """One file: `path` relative to its folder with `/`, `size` in bytes, `sha256` in hex; None means not known."""

    path: str
    size: int
    sha256: str | None


F = TypeVar("F", bound=ListedFile)


def _find_problem(folder: Path, file: ListedFile) -> str | None:
    """Return what is wrong with one file on disk, None if it is as listed; raise OSError if it cannot be read."""
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


def find_problems(folder: Path, files: Sequence[F]) -> dict[F, str]:
    """Return what is wrong with files on disk, in order."""

    def one(file: ListedFile) -> str | None:
        try:
            return _find_problem(folder, file)
        except OSError as error:  # a bad sector: another copy may do
            return f"{file.path} cannot be read: {error}"

    return {file: problem for file, problem in zip(files, in_threads(one, files), strict=True) if problem}


def bring(store: Store, files: Sequence[F], folder: Path) -> dict[F, str]:
    """Download and verify the listed files that a folder does not hold as listed; return why files are still not so.

    Raises:
        StoreError: the store became unreachable. OSError: an arrived file cannot be read here. Whole files stay.
    """

    def one(file: ListedFile) -> str | None:
        try:
            store.get_file(file.path, folder / file.path)
        except FileNotFoundError:
            return f"{file.path} is missing in {store.url}"
        except FileExistsError as error:
            return f"{file.path} has no folder: {error}"
        return _find_problem(folder, file)

    missing = list(find_problems(folder, files))
    return {file: problem for file, problem in zip(missing, in_threads(one, missing), strict=True) if problem}


def in_threads(call: Callable[[T], R], items: Iterable[T], *, num_threads: int = NUM_THREADS) -> list[R]:
    """Return `[call(item) for item in items]`, `num_threads` at a time.

    After an error of a call no further call begins, and the running ones end first. A signal's exception waits for none.
    """
    pool = ThreadPoolExecutor(num_threads)
    try:
        return list(pool.map(call, items))
    finally:
        pool.shutdown(wait=isinstance(sys.exception(), Exception), cancel_futures=True)
