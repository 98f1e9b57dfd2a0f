"""Files of data, Parquet, JSON lines, JSON, CSV and folders of them, as plain rows."""

import csv
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from opd.experiment.errors import nearest

SUFFIXES = (".parquet", ".jsonl", ".json", ".csv")
_PACKED = (".gz", ".zst", ".bz2", ".xz", ".zip")
_OTHER_DATA = (".tsv", ".ndjson", ".arrow")
Record = dict[str, Any]
_SPLITS = ("train", "validation", "valid", "dev", "test")
BATCH_ROWS = 16_384
_LFS_POINTER = b"version https://git-lfs"


class Unreadable(ValueError):
    """A file that cannot be read on, with the way out."""

    def __init__(self, rule: str, fix: str) -> None:
        super().__init__(rule)
        self.rule, self.fix = rule, fix


def near_first(word: str, names: Iterable[str]) -> str:
    """Return the first five of the names as text, the nearest to a misspelt one before the others."""
    ordered = sorted(names)
    near = nearest(word, ordered)
    return ", ".join(sorted(ordered, key=lambda name: name != near)[:5])


def files_of(path: Path) -> list[Path]:
    """Return the files that a path names: itself, or the files of a folder in the order of their names.

    Raises:
        Unreadable: there is none, or a folder mixes splits.
    """
    if path.is_dir():
        found = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.name[0] not in "._")
        splits = {word for file in found for word in _SPLITS if re.match(rf"{word}(?![a-z])", file.stem.lower())}
        names = ", ".join(str(file) for file in found[:5])
        if len(splits) > 1:
            rule = f"the folder holds the splits {', '.join(sorted(splits))}, and all its files would be read"
            raise Unreadable(rule, f"name the files of one split, of [{names}]")
        if unread := sorted(file.name for file in path.iterdir() if _is_unread(file)):
            rule = f"the folder also has data that are not read: {', '.join(unread[:5])}"
            raise Unreadable(rule, f"unpack or write them as {', '.join(SUFFIXES)}, or take them out of the folder")
        if not found:
            inside = sorted(file.name for file in path.iterdir() if file.is_dir() and any(file.glob("*")))[:5]
            raise Unreadable(
                f"the folder has no file that ends in {', '.join(SUFFIXES)}",
                f"name one of its folders: {', '.join(inside)}" if inside else "name a folder with such files",
            )
        return found
    if not path.exists():
        near = [p.name for p in path.parent.iterdir() if p.suffix in SUFFIXES] if path.parent.is_dir() else []
        there = f"; {path.parent} has {near_first(path.name, near)}" if near else ""
        hub = "" if path.suffix in SUFFIXES else "; a data set of the hub is {path: OWNER/NAME, split: train}"
        raise Unreadable(
            f"there is no such file{there}",
            f"name a file that is there; without the key, the kind's own files below data.dir are read{hub}",
        )
    if path.suffix not in SUFFIXES:
        write = 'rename it if it is one of these (a .csv may have tabs), or write one {"prompt": "..."} a line to a .jsonl file'
        fix = "unpack it first" if path.suffix in _PACKED else write
        raise Unreadable(f"a data file ends in one of {', '.join(SUFFIXES)}", fix)
    return [path]


def _is_unread(file: Path) -> bool:
    """Return True for a file of data in another form than a reader takes."""
    packed = Path(file.stem) if file.suffix in _PACKED else file
    is_data = packed.suffix.lower() in (*SUFFIXES, *_OTHER_DATA) and file.suffix not in SUFFIXES
    return is_data and file.name[0] not in "._" and file.is_file()


def raw_rows(path: Path, *, limit: int | None = None) -> Iterator[tuple[str, Record | None]]:
    """Yield (place, row) of a file: `line N` or `row N`, counted from 1; None for each row beyond the limit.

    Raises:
        Unreadable: damaged, empty, or a line that is no JSON object; its number is named.
    """
    with path.open("rb") as file:
        if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
            raise Unreadable("this is a git-lfs pointer, not the data", "fetch it with `git lfs pull`")
    read = {".parquet": _parquet_rows, ".csv": _csv_rows}.get(path.suffix, _json_rows)
    num = 0
    try:
        for num, (place, row) in enumerate(read(path, limit), start=1):
            if row is not None and not isinstance(row, dict):
                rule = f"{place} (counted from 1) is no object in JSON, but {type(row).__name__}"
                raise Unreadable(rule, "write one JSON object a line, or a list of them")
            yield place, None if limit is not None and num > limit else row
    except UnicodeDecodeError as error:
        raise Unreadable(f"the file is not UTF-8 text: {error}", "write it in UTF-8") from error
    if not num:
        raise Unreadable("the file has no rows", "write it again with rows")


def _numbered(rows: Iterable[Any], after: int = 0) -> Iterator[tuple[str, Any]]:
    """Return (place, row) of rows that are no lines of their file."""
    return ((f"row {number}", row) for number, row in enumerate(rows, start=after + 1))


def _parquet_rows(path: Path, limit: int | None) -> Iterator[tuple[str, Any]]:
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            num = 0
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                within = batch.num_rows if limit is None else max(0, min(batch.num_rows, limit - num))
                yield from _numbered(batch.slice(0, within).to_pylist() + [None] * (batch.num_rows - within), num)
                num += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        rule = f"the file cannot be read as Parquet: {' '.join(str(error).split())}"
        raise Unreadable(rule, "copy or write it again; it is cut off or damaged") from error


def _json_rows(path: Path, limit: int | None) -> Iterator[tuple[str, Any]]:
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        num = 0
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            if limit is not None and num >= limit:
                yield f"line {number}", None
                continue
            try:
                row = _loads(line.rstrip())
            except ValueError as error:
                if not num and path.suffix == ".json":
                    yield from _numbered(_whole_json(line + file.read()))
                    return
                rule = f"line {number} is no object in JSON: {_why(error)}"
                raise Unreadable(rule, "mend the line; write one JSON object a line") from error
            rows = _whole_json(line) if not num and path.suffix == ".json" else [row]
            yield from _numbered(rows) if len(rows) > 1 else ((f"line {number}", one) for one in rows)
            num += 1


def _loads(text: str) -> Any:
    """Return a JSON value; a lone surrogate among its escapes is a UnicodeEncodeError, since no table holds it."""
    value = json.loads(text)
    if "\\ud" in text.lower():
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _why(error: ValueError) -> str:
    """Return the fault of a line of JSON, whose position counts within the line."""
    return f"{error.msg} (character {error.pos + 1})" if isinstance(error, json.JSONDecodeError) else str(error)


def _whole_json(text: str) -> list[Any]:
    """Return the rows of a list, of an object, or of an object with one list of rows such as `data`."""
    try:
        value = _loads(text)
    except ValueError as error:
        fix = "write one JSON object a line, or one list of them"
        raise Unreadable(f"the file is no JSON: {error}", fix) from error
    if isinstance(value, dict) and len(value) == 1 and isinstance(rows := next(iter(value.values())), list) and rows:
        value = rows if isinstance(rows[0], dict) and "role" not in rows[0] and "from" not in rows[0] else value
    if (
        isinstance(value, dict)
        and value
        and all(isinstance(column, dict) and "0" in column for column in value.values())
    ):
        raise Unreadable("the file is an object of columns, as pandas writes one", 'to_json(FILE, orient="records")')
    return value if isinstance(value, list) else [value]


def _csv_rows(path: Path, _limit: int | None) -> Iterator[tuple[str, Any]]:
    csv.field_size_limit(sys.maxsize)
    with path.open(encoding="utf-8-sig", newline="") as file:
        header = file.readline()
        file.seek(0)
        reader = csv.DictReader(file, delimiter=max(",;\t", key=header.count), strict=True)
        try:
            for row in reader:
                if None in row or None in row.values():
                    rule = f"line {reader.line_num} has another number of fields than the header"
                    raise Unreadable(rule, 'put a text with a comma or a line break in quotes: "..."')
                yield f"line {reader.line_num}", {key: text or None for key, text in row.items()}
        except csv.Error as error:
            rule = f"line {reader.line_num} cannot be read as CSV: {error}"
            raise Unreadable(rule, 'put a text with a comma or a line break in quotes: "..."') from error
