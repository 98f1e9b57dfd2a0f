"""The part of saving and resuming that runs in each rank's process: hash and upload its files, verify or download them."""

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
    hash_files,
    step_folder,
    visible_files,
)
from opd.store.base import DEFAULT_POLICY, RetryPolicy
from opd.store.durable import fsync_names
from opd.store.opening import open_store
from opd.store.transfer import bring, find_problem, find_problems, in_threads

logger = logging.getLogger(__name__)

# Files that nobody listed are moved here; names with a leading dot are never loaded, uploaded or counted.
UNLISTED_FOLDER = ".unlisted"
# Downloads wait here until all of them are whole: a damaged copy in the store must not spoil the one on the disk.
INCOMING_FOLDER = ".incoming"


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
    """Hashes one rank's files of a saved step and uploads them; called in the process of each rank.

    Args:
        step_dir: this machine's folder of the step, as verl saved it.
        store_url: URL of the run in the object store (`RunHandle.store_url`); None where the local folder is the store.
        files: paths relative to `step_dir`; by default `files_of_rank(step_dir, rank)`.

    Returns:
        The report for the driver's `Checkpoints.finalise`. A store that is away is reported, not raised: the hashes
        still make a complete local checkpoint.

    Raises:
        OSError: a local file cannot be read.
    """
    folder = Path(step_dir)
    paths = files_of_rank(folder, rank) if files is None else list(files)
    entries = tuple(hash_files(folder, paths, rank=rank))
    if store_url is None:
        return ShardReport(rank=rank, entries=entries)
    try:
        store = open_store(store_url, policy=policy).child(step_folder(step))
        # One lost file spoils the step: the others' retries are not waited out.
        in_threads(lambda path: store.put_file(path, folder / path), paths)
    except StoreError as error:
        logger.warning("rank %d: global_step_%d is on the local disk only: %s", rank, step, error)
        return ShardReport(rank=rank, entries=entries, upload_error=str(error))
    return ShardReport(rank=rank, entries=entries)


def fetch_shards(
    *,
    step_dir: str | Path,
    manifest: Manifest,
    store_url: str | None,
    ranks: Sequence[int] | None = None,
    policy: RetryPolicy = DEFAULT_POLICY,
) -> list[str]:
    """Makes this machine's folder hold exactly what the manifest lists, downloading what is missing or differs.

    Args:
        ranks: whose files are needed here; None for all.
        store_url: URL of the run in the object store; None to verify only.

    Returns:
        One line a file that is not as the manifest says; empty means that the files may be loaded.

    Raises:
        StoreUnavailable: the store went away; nothing can be said about the checkpoint.
    """
    folder = Path(step_dir)
    entries = manifest.files_of(ranks)
    problems = find_problems(folder, entries)
    if problems and store_url is not None:
        store = open_store(store_url, policy=policy).child(step_folder(manifest.step))
        # A folder of each rank's: those that share a disk bring their files at the same time. So may an attempt and the one that has
        # overtaken it: whichever moves a file first has moved it for both, and what counts is that it lies there. A file that the
        # other one has moved in is none to miss, though the rest of the same download still waits here for either of them.
        incoming = folder / INCOMING_FOLDER / ("all" if ranks is None else "-".join(map(str, ranks)))
        missing = list(problems)
        problems = {
            file: problem for file, problem in bring(store, missing, incoming).items() if find_problem(folder, file)
        }
        if not problems:
            problems = find_problems(folder, _move_in(folder, incoming, missing))
    if not problems:
        move_unlisted(folder, manifest)
    return list(problems.values())


def _move_in(folder: Path, incoming: Path, entries: Sequence[FileEntry]) -> list[FileEntry]:
    """Takes downloaded files over, once all of them are what the manifest says; returns those that were gone."""
    gone = []
    for entry in entries:
        target = folder / entry.path
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            (incoming / entry.path).replace(target)
        except FileNotFoundError:
            gone.append(entry)
    try:
        fsync_names(folder, [entry.path for entry in entries])
    except FileNotFoundError:  # the successor needs the step no more
        return list(entries)
    shutil.rmtree(incoming, ignore_errors=True)
    return gone


def move_unlisted(folder: Path, manifest: Manifest) -> list[str]:
    """Moves files that the manifest does not list out of the loader's way, so that nothing foreign is unpickled."""
    listed = {entry.path for entry in manifest.files} | {MANIFEST_FILE, COMPLETE_FILE}
    unlisted = [path for path in visible_files(folder) if path not in listed]
    for path in unlisted:
        target = folder / UNLISTED_FOLDER / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # another rank on this disk moved it first
            (folder / path).replace(target)
    if unlisted:
        logger.warning(
            "%s: %d files not in the manifest moved to %s: %s", folder, len(unlisted), UNLISTED_FOLDER, unlisted
        )
    return unlisted


# A leading dot: no step is ever listed, uploaded or counted there.
_FOLDER = re.compile(r"\.saving-(\d{4,})")


def staging_folder(attempt: int) -> str:
    """Of a run directory; its steps are called as verl calls them."""
    return f"{CHECKPOINTS_FOLDER}/.saving-{attempt:04d}"


def sweep_older(folder: Path) -> None:
    """Deletes what saves of attempts before a staging folder's own have left beside it; other folders are left alone."""
    mine = _FOLDER.fullmatch(folder.name)
    if mine is None:
        return
    for other in folder.parent.glob(".saving-*"):
        found = _FOLDER.fullmatch(other.name)
        if found and int(found[1]) < int(mine[1]):
            shutil.rmtree(other, ignore_errors=True)  # other ranks on this disk may be deleting it too


def move_in(staged: Path, step_dir: Path, *, rank: int) -> None:
    """Moves one rank's files of a saved step to where they are sealed; folders that are empty by then go.

    The driver's come first: on its disk `Checkpoints.begin` has taken the seal off what an earlier attempt saved. The disk of
    a rank that was once a driver's may hold seals that count for nobody.

    Raises:
        CheckpointError: the driver's step is sealed, by an attempt that has taken over meanwhile.
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
