"""One file of a case as rows of text, every fault named: CSV by its header, JSON as documents that are stored as they stand."""

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from opd_envs.deepplanning.layout import DOCUMENT, Surprises, Table

Rows = list[tuple[int, dict[str, str]]]
"""Line in the file, and the row by column."""
MAX_ROWS = 1_000_000
"""Of one file."""
_Reader = Callable[[IO[str], Table, str, Surprises], Iterator[tuple[int, dict[str, str]]]]


def rows_of(raw: IO[bytes], table: Table, where: str, surprises: Surprises) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a file with their line numbers, every column of the table in them; faults end it early.

    Args:
        raw: its bytes; a byte order mark is fine.
        where: the case's folder, for messages.
    """
    try:
        with io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as text:
            for num_rows, row in enumerate(_READERS[table.format](text, table, where, surprises), start=1):
                if num_rows > MAX_ROWS:
                    surprises.fault(f"{table.file}: has more than {MAX_ROWS} rows", where)
                    return
                yield row
    except UnicodeDecodeError as error:
        surprises.fault(f"{table.file}: not UTF-8", f"{where}: {error.reason} at byte {error.start}")
    except csv.Error as error:
        surprises.fault(f"{table.file}: not CSV", f"{where}: {error}")


def parsed(text: str) -> Any:
    """JSON without NaN and infinities, which are none.

    Raises:
        ValueError: the text is no JSON, or nested too deeply.
    """
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _csv(text: IO[str], table: Table, where: str, surprises: Surprises) -> Iterator[tuple[int, dict[str, str]]]:
    reader = csv.reader(text)
    header = next(reader, [])
    if not _has_columns(header, table, where, surprises):
        return
    for values in reader:
        if not values:
            continue
        line = f"{where} line {reader.line_num}"
        if len(values) > len(header):
            surprises.fault(f"{table.file}: a row has more fields than the header", line)
            continue
        if len(values) < len(header):
            surprises.note(f"{table.file}: a row has fewer fields than the header; the rest is empty", line)
        found = dict(zip(header, values, strict=False))
        yield reader.line_num, {name: found.get(name, "") for name in table.column_names}


def _has_columns(header: Sequence[str], table: Table, where: str, surprises: Surprises) -> bool:
    for name in sorted({name for name in header if header.count(name) > 1}):
        surprises.fault(f"{table.file}: column {name!r} is there twice", where)
    for column in table.columns:
        if column.name not in header:
            rule = f"{table.file}: column {column.name!r} is missing"
            if column.required:
                surprises.fault(rule, f"{where} has {', '.join(header) or 'no header'}")
            else:
                surprises.note(f"{rule}; stored as empty", where)
    for name in sorted(set(header) - set(table.column_names)):
        surprises.note(f"{table.file}: column {name!r} is not read; left out", where)
    return all(column.name in header for column in table.columns if column.required) and len(set(header)) == len(header)


def _json_lines(text: IO[str], table: Table, where: str, surprises: Surprises) -> Iterator[tuple[int, dict[str, str]]]:
    for number, line in enumerate(text, start=1):
        if line.strip():
            yield from _document(line.strip(), number, table, f"{where} line {number}", surprises)


def _json(text: IO[str], table: Table, where: str, surprises: Surprises) -> Iterator[tuple[int, dict[str, str]]]:
    whole = text.read().strip()
    if whole:
        yield from _document(whole, 1, table, where, surprises)
    else:
        surprises.note(f"{table.file}: is empty; the case has no {table.name}", where)


def _document(
    text: str, line: int, table: Table, where: str, surprises: Surprises
) -> Iterator[tuple[int, dict[str, str]]]:
    """The row of one object: its text, and beside it the fields by which it is looked up."""
    try:
        found = parsed(text)
    except ValueError as error:
        surprises.fault(f"{table.file}: not JSON", f"{where}: {error}")
        return
    if not isinstance(found, dict):
        surprises.fault(f"{table.file}: must be an object", where)
        return
    for name in table.key:
        if not isinstance(found.get(name), str) or not found[name].strip():
            surprises.fault(f"{table.file}: {name} must be a text that is not empty", where)
            return
    yield line, {name: found[name] for name in table.key} | {DOCUMENT: text}


_READERS: dict[str, _Reader] = {"csv": _csv, "jsonl": _json_lines, "json": _json}
