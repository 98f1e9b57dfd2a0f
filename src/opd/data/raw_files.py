"""Reading published raw files, Parquet or JSON lines: every fault is an error that names file, row and column."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

Record = dict[str, Any]
_LFS_POINTER = b"version https://git-lfs"


class RawFileError(ValueError):
    """A raw file that is missing or is not in its published layout."""


class RawFile(NamedTuple):
    """One raw file in memory."""

    path: Path
    columns: frozenset[str]
    """The columns that every row has."""
    records: list[Record]

    def error(self, row: int, column: str, rule: str) -> RawFileError:
        """The error for one cell; `row` counts from 0 here and from 1 in the message."""
        value = self.records[row].get(column)
        shown = repr(value) if len(repr(value)) <= 120 else repr(value)[:120] + "…"
        return RawFileError(f"{self.path}: row {row + 1}, column {column!r}: {rule}, found {shown}")

    def text(self, row: int, column: str) -> str:
        """A cell that must hold text that is not blank."""
        value = self.records[row].get(column)
        if not isinstance(value, str) or not value.strip():
            raise self.error(row, column, "must be a text that is not empty")
        return value

    def answer(self, row: int, column: str) -> str:
        """A cell that must hold an answer, as text or as a whole number."""
        value = self.records[row].get(column)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, float) and value.is_integer():  # what pandas makes of whole numbers beside a gap
            return str(int(value))
        return self.text(row, column).strip()


def read_raw(path: Path, *, source: str) -> RawFile:
    """Reads a `.parquet` or `.jsonl` file.

    Args:
        path: the file.
        source: where the published file comes from, for the message if it is not there.

    Raises:
        RawFileError: missing, unreadable, empty, or a line that is no JSON object.
    """
    if not path.is_file():
        raise RawFileError(f"{path}: no such file. Get it from {source}, or leave this data set out with --sets")
    with path.open("rb") as file:
        if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
            raise RawFileError(f"{path}: this is a git-lfs pointer, not the data: fetch it with `git lfs pull`")
    records = _parquet_records(path) if path.suffix == ".parquet" else _json_records(path)
    if not records:
        raise RawFileError(f"{path}: the file has no rows. Get it again from {source}")
    return RawFile(path, frozenset.intersection(*(frozenset(record) for record in records)), records)


def require_columns(raw: RawFile, layouts: Sequence[Iterable[str]]) -> None:
    """Refuses a file whose rows fit none of the published layouts.

    Raises:
        RawFileError: naming the columns that are missing, by the layout that fits best.
    """
    missing = min((sorted(set(layout) - raw.columns) for layout in layouts), key=len)
    if not missing:
        return
    known = " or ".join("(" + ", ".join(sorted(layout)) + ")" for layout in layouts)
    for row, record in enumerate(raw.records):
        for column in missing:
            if column not in record:
                raise RawFileError(
                    f"{raw.path}: row {row + 1}: column {column!r} is missing; the published layout has {known}, "
                    f"this row has ({', '.join(sorted(record))})"
                )


def _parquet_records(path: Path) -> list[Record]:
    try:
        records: list[Record] = pq.read_table(path).to_pylist()
        return records
    except (pa.ArrowInvalid, OSError) as error:
        raise RawFileError(f"{path}: not a readable Parquet file ({error})") from error


def _json_records(path: Path) -> list[Record]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # not splitlines: U+2028 may stand inside a string
    except UnicodeDecodeError as error:
        raise RawFileError(f"{path}: not UTF-8 text ({error})") from error
    records = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise RawFileError(f"{path}: line {number}, character {error.colno}: not JSON ({error.msg})") from error
        if not isinstance(record, dict):
            raise RawFileError(f"{path}: line {number}: must be a JSON object, found {type(record).__name__}")
        records.append(record)
    return records
