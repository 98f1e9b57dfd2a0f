"""Reading published raw files, Parquet or JSON lines: every fault is an error that names file, row and column."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from opd.data.files import Record, Unreadable, raw_rows


class RawFileError(ValueError):
    """A raw file that is missing or is not in its published layout."""


class RawFile(NamedTuple):
    """One raw file in memory."""

    path: Path
    columns: frozenset[str]
    """The columns that every row has."""
    records: list[Record]

    def error(self, row: int, column: str, rule: str) -> RawFileError:
        """Return the error for one cell; `row` counts from 0 here and from 1 in the message."""
        value = self.records[row].get(column)
        shown = repr(value) if len(repr(value)) <= 120 else repr(value)[:120] + "…"
        return RawFileError(f"{self.path}: row {row + 1}, column {column!r}: {rule}, found {shown}")

    def text(self, row: int, column: str) -> str:
        """Return a cell that must hold text that is not blank."""
        value = self.records[row].get(column)
        if not isinstance(value, str) or not value.strip():
            raise self.error(row, column, "must be a text that is not empty")
        return value

    def answer(self, row: int, column: str) -> str:
        """Return a cell that must hold an answer, as text or as a whole number."""
        value = self.records[row].get(column)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, float) and value.is_integer():  # what pandas makes of whole numbers next to a gap
            return str(int(value))
        return self.text(row, column).strip()


def read_raw(path: Path, *, source: str) -> RawFile:
    """Read a `.parquet` or `.jsonl` file.

    Args:
        path: the file.
        source: where the published file comes from, for the message if it is not there.

    Raises:
        RawFileError: missing, unreadable, empty, or a line that is no JSON object.
    """
    if not path.is_file():
        raise RawFileError(f"{path}: no such file. Get it from {source}, or leave this data set out with --sets")
    try:
        records = [record or {} for _, record in raw_rows(path)]
    except Unreadable as error:
        raise RawFileError(f"{path}: {error.rule}: {error.fix}. It is published as {source}") from error
    return RawFile(path, frozenset.intersection(*(frozenset(record) for record in records)), records)


def require_columns(raw: RawFile, layouts: Sequence[Iterable[str]]) -> None:
    """Refuse a file whose rows fit none of the published layouts.

    Raises:
        RawFileError: naming the columns that are missing, by the layout that fits best.
    """
    missing = min((sorted(set(layout) - raw.columns) for layout in layouts), key=len)
    if not missing:
        return
    known = " or ".join("(" + ", ".join(sorted(layout)) + ")" for layout in layouts)
    lacking = ((row, column) for row in range(len(raw.records)) for column in missing if column not in raw.records[row])
    row, column = next(lacking)
    raise RawFileError(
        f"{raw.path}: row {row + 1}: column {column!r} is missing; the published layout has {known}, "
        f"this row has ({', '.join(sorted(raw.records[row]))})"
    )
