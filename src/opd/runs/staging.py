"""Where an attempt saves a step until it is sealed: a folder of its own.

An attempt that was paused in the middle of a save wakes up beside its successor; on a disk that both see it goes on writing
where nobody else does, and its seal is refused.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path

from opd.errors import CheckpointError
from opd.runs.manifest import CHECKPOINTS_FOLDER, COMPLETE_FILE, DRIVER_RANK, files_of_rank

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
