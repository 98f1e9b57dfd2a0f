"""What an evaluation calls its problems: (data set, index), unique whatever files and rows it is given."""

import logging
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

logger = logging.getLogger(__name__)


class Problem(NamedTuple):
    """One problem's identity in results, metrics and the file of generations."""

    data_source: str
    problem_index: int


class ProblemFile(NamedTuple):
    """The columns of one prepared file that say which problems it holds."""

    path: str
    """Path or URL as the experiment names it."""
    data_sources: Sequence[str]
    indices: Sequence[object]
    """`extra_info.index` of each row; None where there is none."""


def name_problems(files: Sequence[ProblemFile]) -> list[Problem]:
    """The problem of every row of every file, in their order.

    Where every row of a data source has an `extra_info.index` of its own, over all files (parts of one benchmark),
    these are its problems. Otherwise each file that holds it is a data set, told apart by what differs in their paths
    (the AIME24 of `eval_processed/boxed` and of `eval_processed/dapo` are `aime24-boxed` and `aime24-dapo`), and a row
    of a file with no index, one that is no whole number or the same one twice is numbered by its place in it, from 0.

    Raises:
        ValueError: two data sets would have the same name, whatever is done.
    """
    rows: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for number, file in enumerate(files):
        for row, source in enumerate(file.data_sources):
            rows[source].append((number, row))
    found: dict[tuple[int, int], Problem] = {}
    apart: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for source, places in rows.items():
        indices = _own_indices(files, places)
        if indices is not None:
            found |= {place: Problem(source, index) for place, index in zip(places, indices, strict=True)}
            continue
        for place in places:
            apart.setdefault((place[0], source), []).append(place)
    names = _names(
        list(apart), [file.path for file in files], taken={problem.data_source for problem in found.values()}
    )
    for data_set, places in apart.items():
        indices = _own_indices(files, places)
        if indices is None:
            logger.warning(
                "%s in %s: not every row has an extra_info.index of its own, so problems are numbered by their rows",
                data_set[1],
                files[data_set[0]].path,
            )
            indices = [row for _, row in places]
        found |= {place: Problem(names[data_set], index) for place, index in zip(places, indices, strict=True)}
    return [found[place] for place in sorted(found)]


def _own_indices(files: Sequence[ProblemFile], places: Sequence[tuple[int, int]]) -> list[int] | None:
    """The indices of rows, each (file, row); None where one is no whole number, or not the only one of its kind."""
    values = [files[number].indices[row] for number, row in places]
    indices = [value for value in values if isinstance(value, int) and not isinstance(value, bool)]
    return indices if len(set(indices)) == len(values) else None


def _names(
    data_sets: Sequence[tuple[int, str]], paths: Sequence[str], *, taken: set[str]
) -> dict[tuple[int, str], str]:
    """A name for each (file, data source): by the paths if that tells them apart, else by the files' numbers from 1."""
    num_files = Counter(source for _, source in data_sets)
    by_path: dict[tuple[int, str], str] = {}
    by_number: dict[tuple[int, str], str] = {}
    for number, source in data_sets:
        holders = [other for other, held in data_sets if held == source]
        apart = _apart([paths[other] for other in holders])[holders.index(number)]
        by_path[number, source] = f"{source}-{apart}" if apart else source
        by_number[number, source] = f"{source}-{number + 1}" if num_files[source] > 1 else source
    for names in (by_path, by_number):
        if len(set(names.values()) - taken) == len(names):
            return names
    raise ValueError(
        f"data sets of {', '.join(paths)} cannot be told apart: {sorted(by_number.values())}; rename a data_source"
    )


def _apart(paths: Sequence[str]) -> list[str]:
    """What is left of the paths without the folders, and the file name, that all of them share."""
    parts = [list(PurePosixPath(path.rpartition("://")[2]).with_suffix("").parts) for path in paths]
    while len(parts) > 1 and all(parts) and len({part[0] for part in parts}) == 1:
        parts = [part[1:] for part in parts]
    while len(parts) > 1 and all(parts) and len({part[-1] for part in parts}) == 1:
        parts = [part[:-1] for part in parts]
    if len(parts) == 1:
        return [""]
    return [re.sub(r"[^\w.-]+", "_", "-".join(part)) for part in parts]
