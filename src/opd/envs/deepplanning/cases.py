"""One case of an archive in memory, every value looked at: the part that `check` and the import have in common."""

import re
from collections.abc import Iterable, Iterator, Sequence

from opd.envs.deepplanning.archive import Archive
from opd.envs.deepplanning.layout import (
    ATTRACTIONS,
    DISTANCES,
    FLIGHTS,
    FORMS,
    HOTELS,
    LOCATIONS,
    RESTAURANTS,
    TABLES,
    TRAINS,
    CaseRows,
    Layout,
    Table,
    point,
)
from opd.envs.deepplanning.readers import Rows
from opd.envs.deepplanning.surprises import Surprises

_MAX_SHOWN_CHARS = 60
_COLUMN_OF_FIELD = {
    "hotel_name": (HOTELS, "name"),
    "restaurant_name": (RESTAURANTS, "restaurant_name"),
    "attraction_names": (ATTRACTIONS, "attraction_name"),
    "outbound_train_no": (TRAINS, "train_no"),
    "inbound_train_no": (TRAINS, "train_no"),
    "outbound_flight_no": (FLIGHTS, "flight_no"),
    "inbound_flight_no": (FLIGHTS, "flight_no"),
}
"""Where the entry is that a constraint's field names."""


def read_cases(archive: Archive, surprises: Surprises) -> Iterator[tuple[str, dict[str, Rows]]]:
    """Every case with its rows by table, checked; in the order of the ids."""
    layout = archive.layout
    if not archive.cases:
        file = layout.tables[0].file
        surprises.fault(f"archive: no file of the form {layout.folder('N')}/{file} is in it", archive.path.name)
    for case in archive.cases:
        rows = {table.name: archive.rows(case, table) for table in layout.tables}
        where = layout.folder(case)
        for table in layout.tables:
            _check_values(where, table, rows[table.name], surprises)
            _check_unique(where, table, rows[table.name], surprises)
        layout.check(where, rows, surprises)
        yield case, rows


def _check_named(where: str, rows: CaseRows, named: Iterable[tuple[str, str]], surprises: Surprises) -> None:
    """Whether the entries that a query's constraints name, by the constraint's field, are in its case."""
    for field, name in named:
        table, column = _COLUMN_OF_FIELD[field]
        if all(row[column] != name for _, row in rows[table.name]):
            surprises.note(f"{table.file}: an entry that the query's {field} names is missing", f"{where}: {name!r}")


def _check_values(where: str, table: Table, rows: Rows, surprises: Surprises) -> None:
    for column in table.columns:
        pattern, rule = FORMS[column.form]
        for line, row in rows:
            value = row[column.name]
            if (value or column.required) and pattern.fullmatch(value) is None:
                surprises.note(f"{table.file}: column {column.name!r} {rule}", place(where, line, value))


def _check_unique(where: str, table: Table, rows: Rows, surprises: Surprises) -> None:
    seen: set[tuple[str, ...]] = set()
    for line, row in rows:
        key = tuple(row[name] for name in table.unique)
        if key in seen:
            surprises.note(f"{table.file}: {', '.join(table.unique)} twice in one case", place(where, line, *key))
        seen.add(key)


def _check_points(where: str, rows: CaseRows, surprises: Surprises) -> None:
    """The road route tool finds coordinates by their very text: a place that is in no row of the matrix has no route."""
    known = {row[end] for _, row in rows[DISTANCES.name] for end in ("origin", "destination")}
    for line, row in rows[LOCATIONS.name]:
        if point(row) not in known:
            surprises.note(f"{LOCATIONS.file}: a place is not in {DISTANCES.file}", place(where, line, row["poi_name"]))
    places = {point(row) for _, row in rows[LOCATIONS.name]}
    for line, row in rows[RESTAURANTS.name]:
        asked = point(row, "query_")
        if asked not in places:
            surprises.note(f"{RESTAURANTS.file}: query coordinates of no place", place(where, line, asked))


def place(where: str, line: int, *values: str) -> str:
    """A line of a case's file with some of its values, for messages."""
    shown: Sequence[str] = [
        value if len(value) <= _MAX_SHOWN_CHARS else f"{value[:_MAX_SHOWN_CHARS]}…" for value in values
    ]
    return f"{where} line {line}: {', '.join(map(repr, shown))}"


TRAVEL = Layout(
    TABLES,
    "id_",
    re.compile(r"(?:[^/]+/)*id_([A-Za-z0-9_-]{1,40})/([a-z]+/[a-z_]+\.csv)"),
    _check_points,
    _check_named,
)
