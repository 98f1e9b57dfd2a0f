"""Names of an evaluation's problems, (data set, index), unique over all files."""

import logging
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import NamedTuple, cast

logger = logging.getLogger(__name__)


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
    rows: defaultdict[str, defaultdict[int, list[int]]] = defaultdict(lambda: defaultdict(list))  # by source and file
    for number, file in enumerate(files):
        for row, source in enumerate(file.data_sources):
            rows[source][number].append(row)
    found: dict[tuple[int, int], Problem] = {}
    for source, by_file in rows.items():
        own = {number: [files[number].indices[row] for row in of_file] for number, of_file in by_file.items()}
        is_one_set = _are_distinct([index for of_file in own.values() for index in of_file])
        labels = [""] * len(own) if is_one_set else _apart([files[number].path for number in own])
        for (number, indices), label in zip(own.items(), labels, strict=True):
            if not _are_distinct(indices):
                path, indices = files[number].path, list[object](by_file[number])
                text = "%s in %s: rows lack an extra_info.index of their own, so their numbers name the problems"
                logger.warning(text, source, path)
            name = f"{source}-{label}" if label else source
            for row, index in zip(by_file[number], indices, strict=True):
                found[number, row] = Problem(name, int(cast(int, index)))
    if (twice := Counter(found.values()).most_common(1)) and twice[0][1] > 1:
        named = [file.path for file in files]
        raise ValueError(f"{twice[0][0].data_source} would name problems of several of {named}: rename a data_source")
    return [found[place] for place in sorted(found)]


def _are_distinct(indices: Sequence[object]) -> bool:
    """Return True for distinct whole numbers."""
    numbers = {index for index in indices if isinstance(index, int) and not isinstance(index, bool)}
    return len(numbers) == len(indices)


def _apart(paths: Sequence[str]) -> list[str]:
    """Return what differs between the paths, without the folders and the file name that all share."""
    parts = [list(PurePosixPath(path.rpartition("://")[2]).with_suffix("").parts) for path in paths]
    for end in (0, -1):
        while len(parts) > 1 and all(parts) and len({part[end] for part in parts}) == 1:
            for part in parts:
                del part[end]
    return [""] if len(parts) == 1 else [re.sub(r"[^\w.-]+", "_", "-".join(part)) for part in parts]
