"""One case of an archive in memory, every value looked at: the part that `check` and the import have in common."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

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
    Table,
    point,
)
from opd.envs.deepplanning.surprises import Surprises

Rows = list[tuple[int, dict[str, str]]]
"""Line in the file, and the row by column."""
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
    if not archive.cases:
        surprises.fault("archive: no file of the form id_N/FOLDER/FILE.csv is in it", archive.path.name)
    for case in archive.cases:
        rows = {table.name: list(archive.rows(case, table)) for table in TABLES}
        for table in TABLES:
            _check_values(case, table, rows[table.name], surprises)
            _check_unique(case, table, rows[table.name], surprises)
        _check_points(case, rows, surprises)
        yield case, rows


def check_named(case: str, rows: Mapping[str, Rows], named: Iterable[tuple[str, str]], surprises: Surprises) -> None:
    """Whether the entries that a query's constraints name are in its case.

    Args:
        case: the query's id.
        rows: the case's rows by table.
        named: (field of the constraint, name).
    """
    for field, name in named:
        table, column = _COLUMN_OF_FIELD[field]
        if all(row[column] != name for _, row in rows[table.name]):
            surprises.note(f"{table.file}: an entry that the query's {field} names is missing", f"id_{case}: {name!r}")


def _check_values(case: str, table: Table, rows: Rows, surprises: Surprises) -> None:
    for column in table.columns:
        pattern, rule = FORMS[column.form]
        for line, row in rows:
            value = row[column.name]
            if (value or column.required) and pattern.fullmatch(value) is None:
                surprises.note(f"{table.file}: column {column.name!r} {rule}", _place(case, line, value))


def _check_unique(case: str, table: Table, rows: Rows, surprises: Surprises) -> None:
    seen: set[tuple[str, ...]] = set()
    for line, row in rows:
        key = tuple(row[name] for name in table.unique)
        if key in seen:
            surprises.note(f"{table.file}: {', '.join(table.unique)} twice in one case", _place(case, line, *key))
        seen.add(key)


def _check_points(case: str, rows: Mapping[str, Rows], surprises: Surprises) -> None:
    """The road route tool finds coordinates by their very text: a place that is in no row of the matrix has no route."""
    known = {row[end] for _, row in rows[DISTANCES.name] for end in ("origin", "destination")}
    for line, row in rows[LOCATIONS.name]:
        if point(row) not in known:
            surprises.note(f"{LOCATIONS.file}: a place is not in {DISTANCES.file}", _place(case, line, row["poi_name"]))
    places = {point(row) for _, row in rows[LOCATIONS.name]}
    for line, row in rows[RESTAURANTS.name]:
        asked = point(row, "query_")
        if asked not in places:
            surprises.note(f"{RESTAURANTS.file}: query coordinates of no place", _place(case, line, asked))


def _place(case: str, line: int, *values: str) -> str:
    shown: Sequence[str] = [
        value if len(value) <= _MAX_SHOWN_CHARS else f"{value[:_MAX_SHOWN_CHARS]}…" for value in values
    ]
    return f"id_{case} line {line}: {', '.join(map(repr, shown))}"
