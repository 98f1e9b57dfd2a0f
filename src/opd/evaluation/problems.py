"""Names of an evaluation's problems, (data set, index), unique over all files."""

import logging
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

logger = logging.getLogger(__name__)
Place = tuple[int, int]  # (number of the file, row)


class Problem(NamedTuple):
    """One problem's identity in results, metrics and the file of generations."""

    data_source: str
    problem_index: int


class ProblemFile(NamedTuple):
    """The columns of one prepared file that identify its problems."""

    path: str
    """Path or URL as the experiment names it."""
    data_sources: Sequence[str]
    indices: Sequence[object]
    """`extra_info.index` of each row; None without one."""


def name_problems(files: Sequence[ProblemFile]) -> list[Problem]:
    """Return the problem of every row of every file, in their order.

    A data source whose rows have distinct whole numbers as `extra_info.index`, over all files, keeps them (parts of one
    benchmark). Otherwise each file is a data set, named by the part of its path that differs: the AIME24 of
    `eval_processed/boxed` and of `eval_processed/dapo` become `aime24-boxed` and `aime24-dapo`. Without distinct indices in
    the file a row's number counts, from 0.

    Raises:
        ValueError: two data sets would have the same name.
    """
    rows: defaultdict[str, list[Place]] = defaultdict(list)
    for number, file in enumerate(files):
        for row, source in enumerate(file.data_sources):
            rows[source].append((number, row))
    found: dict[Place, Problem] = {}
    for source, places in rows.items():
        if (indices := _own_indices(files, places)) is not None:
            names, sets = [source], [(places, indices)]
        else:
            holders = sorted({number for number, _ in places})
            names = [f"{source}-{apart}" if apart else source for apart in _apart([files[n].path for n in holders])]
            sets = [_of_file(files, source, number) for number in holders]
        for name, (of_set, indices) in zip(names, sets, strict=True):
            found |= {place: Problem(name, index) for place, index in zip(of_set, indices, strict=True)}
    if (twice := Counter(found.values()).most_common(1)) and twice[0][1] > 1:
        named = [file.path for file in files]
        raise ValueError(f"{twice[0][0].data_source} would name problems of several of {named}: rename a data_source")
    return [found[place] for place in sorted(found)]


def _own_indices(files: Sequence[ProblemFile], places: Sequence[Place]) -> list[int] | None:
    """Return the indices of rows, or None unless they are distinct whole numbers."""
    values = [files[number].indices[row] for number, row in places]
    indices = [value for value in values if isinstance(value, int) and not isinstance(value, bool)]
    return indices if len(set(indices)) == len(values) else None


def _of_file(files: Sequence[ProblemFile], source: str, number: int) -> tuple[list[Place], list[int]]:
    """Return the rows that a file has of a data source, and their indices, or their numbers without distinct indices."""
    file = files[number]
    places = [(number, row) for row, of_row in enumerate(file.data_sources) if of_row == source]
    indices = _own_indices(files, places)
    if indices is None:
        logger.warning(
            "%s in %s: rows lack an extra_info.index of their own, so their numbers name the problems",
            source,
            file.path,
        )
        indices = [row for _, row in places]
    return places, indices


def _apart(paths: Sequence[str]) -> list[str]:
    """Return what differs between the paths, without the folders and the file name that all share."""
    parts = [list(PurePosixPath(path.rpartition("://")[2]).with_suffix("").parts) for path in paths]
    for end in (0, -1):
        while len(parts) > 1 and all(parts) and len({part[end] for part in parts}) == 1:
            for part in parts:
                del part[end]
    return [""] if len(parts) == 1 else [re.sub(r"[^\w.-]+", "_", "-".join(part)) for part in parts]
