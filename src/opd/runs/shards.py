"""Saving and resuming in each rank's process: hash and upload its files, verify or download them."""

import contextlib
import logging
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from opd.errors import CheckpointError, StoreError
from opd.runs.manifest import COMPLETE_FILE, DRIVER_RANK, STAGING, FileEntry, Manifest, files_of_rank, step_folder
from opd.store.base import DEFAULT_POLICY, RetryPolicy
from opd.store.durable import fsync_folder, hash_file, make_folder
from opd.store.remote import open_store
from opd.store.transfer import bring, find_problems, in_threads

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ShardReport:
    """A rank's acknowledgement: its files' entries, and why they are not in the store (empty if they are)."""

    entries: tuple[FileEntry, ...]
    upload_error: str = ""


def upload_shards(
    *, rank: int, step: int, step_dir: str | Path, store_url: str | None, files: Sequence[str] | None = None,
    policy: RetryPolicy = DEFAULT_POLICY,
) -> ShardReport:  # fmt: skip
    """Hash, sync and upload files of a saved step in the process of their rank, `files_of_rank` by default.

    Without a URL the files are only hashed. An unreachable store makes a report, not an error: the hashes still make a
    complete local checkpoint.
    """
    folder, error = Path(step_dir), ""
    paths = files_of_rank(folder, rank) if files is None else list(files)
    entries = hash_files(folder, paths, rank=rank)
    try:
        if store_url is not None:
            store = open_store(store_url, policy=policy).child(step_folder(step))
            # One lost file spoils the step: the retries of the others are not waited for.
            in_threads(lambda path: store.put_file(path, folder / path), paths)
    except StoreError as away:
        error = f"rank {rank}: {away}"
        logger.warning("global_step_%d is on the local disk only: %s", step, error)
    return ShardReport(entries=entries, upload_error=error)


def hash_files(folder: Path, paths: Sequence[str], *, rank: int) -> tuple[FileEntry, ...]:
    """Hash files that another library has just saved, in parallel, and sync their bytes and names."""
    hashed = zip(paths, in_threads(lambda path: hash_file(folder / path, sync=True), paths), strict=True)
    synced: set[Path] = set()
    for parent in sorted({(folder / path).absolute().parent for path in paths}):
        fsync_folder(parent)
        make_folder(parent, synced)
    return tuple(FileEntry(path=path, size=size, sha256=digest, rank=rank) for path, (size, digest) in hashed)


def fetch_shards(
    *, step_dir: str | Path, manifest: Manifest, store_url: str | None, ranks: Sequence[int] | None = None
) -> list[str]:
    """Make this machine's folder hold the files of these ranks (None means all); return a line for each that is not as listed.

    Missing and different files are downloaded; without a store's URL the files are only verified.
    """
    folder = Path(step_dir)
    problems = find_problems(folder, manifest.files_of(ranks))
    if problems and store_url is not None:
        for path in (folder / entry.path for entry in problems):
            for left in path.parent.glob(f".{path.name}.part-*"):  # of downloads that were killed
                left.unlink(missing_ok=True)
        store = open_store(store_url).child(step_folder(manifest.step))
        problems = bring(store, list(problems), folder)
    return list(problems.values())


def sweep_older(folder: Path) -> None:
    """Delete the staging folders of attempts before this folder's own."""
    for other in folder.parent.glob(f"{STAGING}*") if folder.name.startswith(STAGING) else ():
        if (len(other.name), other.name) < (len(folder.name), folder.name):
            shutil.rmtree(other, ignore_errors=True)  # other ranks on this disk may delete it, too


def move_in(staged: Path, step_dir: Path, *, rank: int) -> None:
    """Move one rank's files of a saved step to the folder in which they are sealed, and remove empty folders.

    The driver moves first, and raises CheckpointError if another attempt has sealed the step meanwhile: on its disk
    `Checkpoints.begin` has removed an earlier seal. Seals on the disks of other ranks do not count.
    """
    if rank == DRIVER_RANK and (step_dir / COMPLETE_FILE).exists():
        raise CheckpointError(f"{step_dir} was sealed by another attempt while this one saved it")
    for path in files_of_rank(staged, rank):
        target = step_dir / path
        target.parent.mkdir(parents=True, exist_ok=True)
        (staged / path).replace(target)
    for folder, _, _ in os.walk(staged, topdown=False):
        with contextlib.suppress(OSError):  # another rank's files are still there
            os.removedirs(folder)
