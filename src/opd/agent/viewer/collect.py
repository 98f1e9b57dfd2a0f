"""Which of a run's kept conversations a page shows, read from the run directory or its store."""

from __future__ import annotations

from collections.abc import Sequence

from opd.agent.trajectories import FOLDER, Trajectory, from_lines
from opd.store.base import Store

NUM_FILES = 4
"""Files of each partition that a page shows by default."""


def load(run: Store, *, num_files: int = NUM_FILES) -> list[Trajectory]:
    """The conversations of a run, none if it kept none.

    Raises:
        StoreError: the store cannot be read. ValueError: a file is damaged; names it.
    """
    out: list[Trajectory] = []
    for key in pick([info.key for info in run.list(FOLDER)], num_files):
        try:
            out += from_lines(run.get(key))
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from error
    return out


def pick(keys: Sequence[str], num_files: int) -> list[str]:
    """The first and the newest files of each partition, at most `num_files`: where it began and where it is now."""
    partitions: dict[str, list[str]] = {}
    for key in sorted(keys):
        partitions.setdefault(key.rpartition("/")[2].partition("-")[0], []).append(key)
    out = []
    for found in partitions.values():
        newest = found[max(len(found) - num_files, 0) :]
        out += newest if len(found) <= num_files else [found[0], *newest[1:]]
    return out
