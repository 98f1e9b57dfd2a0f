"""Saving and resuming in each rank's process: hash and upload its files, verify or download them."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from opd.errors import CheckpointError, StoreError
from opd.runs.manifest import (
    CHECKPOINTS_FOLDER,
    COMPLETE_FILE,
    DRIVER_RANK,
    MANIFEST_FILE,
    FileEntry,
    Manifest,
    files_of_rank,
    step_folder,
    visible_files,
)
from opd.store.base import DEFAULT_POLICY, RetryPolicy
from opd.store.durable import fsync_names, hash_file
from opd.store.opening import open_store
from opd.store.transfer import bring, find_problem, find_problems, in_threads

logger = logging.getLogger(__name__)

# No listing, upload or resume sees names with a leading dot.
UNLISTED_FOLDER = ".unlisted"
# Downloads wait here until all of them are whole: a damaged copy in the store must not spoil the copy on the disk.
INCOMING_FOLDER = ".incoming"
_STAGING = re.compile(r"\.saving-(\d{4,})")


@dataclass(frozen=True, kw_only=True)
class ShardReport:
    """A rank's acknowledgement: its files' entries, and why they are not in the store (empty if they are)."""

    rank: int
    entries: tuple[FileEntry, ...]
    upload_error: str = ""


def upload_shards(
    *,
    rank: int,
    step: int,
    step_dir: str | Path,
    store_url: str | None,
    files: Sequence[str] | None = None,
    policy: RetryPolicy = DEFAULT_POLICY,
) -> ShardReport:
    """Hash, sync and upload one rank's files of a saved step, in the process of that rank.

    An unreachable store makes a report, not an error: the hashes still make a complete local checkpoint.

    Args:
        store_url: URL of the run in the object store; None where the local folder is the store.
        files: paths relative to `step_dir`; by default `files_of_rank(step_dir, rank)`.

    Raises:
        OSError: a local file cannot be read.
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
        error = str(away)
        logger.warning("rank %d: global_step_%d is on the local disk only: %s", rank, step, error)
    return ShardReport(rank=rank, entries=entries, upload_error=error)


def hash_files(folder: Path, paths: Sequence[str], *, rank: int) -> tuple[FileEntry, ...]:
    """Hash freshly saved files in parallel, and sync their bytes and names."""
    hashed = zip(paths, in_threads(lambda path: hash_file(folder / path, sync=True), paths), strict=True)
    fsync_names(folder, paths)
    return tuple(FileEntry(path=path, size=size, sha256=digest, rank=rank) for path, (size, digest) in hashed)


def fetch_shards(
    *,
    step_dir: str | Path,
    manifest: Manifest,
    store_url: str | None,
    ranks: Sequence[int] | None = None,
    policy: RetryPolicy = DEFAULT_POLICY,
) -> list[str]:
    """Make this machine's folder hold exactly the manifest's files, downloading missing and different ones.

    Args:
        ranks: ranks whose files are needed here; None means all.
        store_url: URL of the run in the object store; None means verify only.

    Returns:
        One line for each file that is not as the manifest says; without a line the files may be loaded.

    Raises:
        StoreUnavailable: the store became unreachable, which says nothing about the checkpoint.
    """
    folder = Path(step_dir)
    problems = find_problems(folder, manifest.files_of(ranks))
    if problems and store_url is not None:
        store = open_store(store_url, policy=policy).child(step_folder(manifest.step))
        # Ranks on one disk download at the same time, and so do an attempt and its successor. The first to move a file
        # in has moved it for all.
        incoming = folder / INCOMING_FOLDER / ("all" if ranks is None else "-".join(map(str, ranks)))
        missing = list(problems)
        left = bring(store, missing, incoming)
        problems = {file: problem for file, problem in left.items() if find_problem(folder, file)}
        if not problems:
            problems = find_problems(folder, _move_in(folder, incoming, missing))
    if not problems:
        _hide_unlisted(folder, manifest)
    return list(problems.values())


def _move_in(folder: Path, incoming: Path, entries: Sequence[FileEntry]) -> list[FileEntry]:
    """Move downloaded files in, once all of them are whole; return files that another process had moved."""
    gone = [entry for entry in entries if not _move(incoming / entry.path, folder / entry.path)]
    try:
        fsync_names(folder, [entry.path for entry in entries])
    except FileNotFoundError:  # the successor has deleted the step
        return list(entries)
    shutil.rmtree(incoming, ignore_errors=True)
    return gone


def _hide_unlisted(folder: Path, manifest: Manifest) -> None:
    """Move files away that the manifest does not list, so that no loader reads a foreign file."""
    listed = {entry.path for entry in manifest.files} | {MANIFEST_FILE, COMPLETE_FILE}
    unlisted = [path for path in visible_files(folder) if path not in listed]
    for path in unlisted:
        _move(folder / path, folder / UNLISTED_FOLDER / path)
    if unlisted:
        logger.warning("%s: %d unlisted files moved to %s: %s", folder, len(unlisted), UNLISTED_FOLDER, unlisted)


def _move(source: Path, target: Path) -> bool:
    """Move a file; return False if another process on this disk has moved it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        source.replace(target)
    except FileNotFoundError:
        return False
    return True


def staging_folder(attempt: int) -> str:
    """Return the hidden folder of the run directory in which an attempt's unsealed steps are saved."""
    return f"{CHECKPOINTS_FOLDER}/.saving-{attempt:04d}"


def sweep_older(folder: Path) -> None:
    """Delete the staging folders of attempts before this folder's own."""
    mine = _STAGING.fullmatch(folder.name)
    for other in folder.parent.glob(".saving-*") if mine else ():
        found = _STAGING.fullmatch(other.name)
        if found and mine and int(found[1]) < int(mine[1]):
            shutil.rmtree(other, ignore_errors=True)  # other ranks on this disk may delete it, too


def move_in(staged: Path, step_dir: Path, *, rank: int) -> None:
    """Move one rank's files of a saved step to the folder in which they are sealed, and remove empty folders.

    The driver moves first: on its disk `Checkpoints.begin` has removed an earlier attempt's seal. Seals on the disks of
    other ranks do not count.

    Raises:
        CheckpointError: an attempt that has taken over meanwhile sealed the driver's step.
    """
    if rank == DRIVER_RANK and (step_dir / COMPLETE_FILE).exists():
        raise CheckpointError(f"{step_dir} was sealed by another attempt while this one saved it")
    for path in files_of_rank(staged, rank):
        target = step_dir / path
        target.parent.mkdir(parents=True, exist_ok=True)
        (staged / path).replace(target)
    for folder, _, _ in os.walk(staged, topdown=False):
        with contextlib.suppress(OSError):  # another rank's files are still there
            os.rmdir(folder)
