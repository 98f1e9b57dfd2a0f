"""The published layout of a case's files: what the benchmark's tools and evaluation read, and in which form."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

NUM_EXAMPLES = 3


@dataclass
class _Group:
    fault: bool
    count: int = 0
    examples: list[str] = field(default_factory=list)


class Surprises:
    """Faults, with which an archive cannot be used, and notes: values that are imported as they stand.

    Args:
        num_examples: places that are kept of each kind; None: all.
    """

    def __init__(self, num_examples: int | None = NUM_EXAMPLES) -> None:
        self._num_examples = num_examples
        self._groups: dict[str, _Group] = {}

    def fault(self, rule: str, where: str = "") -> None:
        """Something without which tools cannot work."""
        self._add(rule, where, fault=True)

    def note(self, rule: str, where: str = "") -> None:
        """Something unexpected that tools can live with."""
        self._add(rule, where, fault=False)

    @property
    def num_faults(self) -> int:
        """Faults counted one by one."""
        return sum(group.count for group in self._groups.values() if group.fault)

    @property
    def num_notes(self) -> int:
        """Notes counted one by one."""
        return sum(group.count for group in self._groups.values() if not group.fault)

    def lines(self) -> Iterator[str]:
        """One line a kind, faults first: what, how often, where."""
        for rule, group in sorted(self._groups.items(), key=lambda item: (not item[1].fault, item[0])):
            more = group.count - len(group.examples)
            where = "; ".join(group.examples) + (f"; and {more} more" if more and group.examples else "")
            yield f"{'fault' if group.fault else 'note'}: {rule}" + (f" ({where})" if where else "")

    def _add(self, rule: str, where: str, *, fault: bool) -> None:
        group = self._groups.setdefault(rule, _Group(fault))
        group.count += 1
        if where and (self._num_examples is None or len(group.examples) < self._num_examples):
            group.examples.append(where)


Form = Literal["text", "any", "number", "integer", "date", "datetime", "coordinate", "point"]

FORMS: Mapping[Form, tuple[re.Pattern[str], str]] = {
    "text": (re.compile(r"(?s).*\S.*"), "must not be empty"),
    "any": (re.compile(r"(?s).*"), ""),
    "number": (re.compile(r"-?\d+(\.\d+)?"), "must be a number"),
    "integer": (re.compile(r"-?\d+"), "must be a whole number"),
    "date": (re.compile(r"\d{4}-\d{2}-\d{2}"), "must be a date as YYYY-MM-DD"),
    "datetime": (re.compile(r"\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}(:\d{2})?"), "must be a time as YYYY-MM-DD HH:MM"),
    "coordinate": (re.compile(r"-?\d{1,3}\.\d{6}"), "must have six decimals"),
    "point": (re.compile(r"-?\d{1,3}\.\d{6},-?\d{1,3}\.\d{6}"), "must be LATITUDE,LONGITUDE of six decimals each"),
}
"""What a value must match as a whole, and the rule in words."""


class Column(NamedTuple):
    """A column of a published file; its values are stored as they stand."""

    name: str
    form: Form = "text"
    required: bool = True
    """Without it the file cannot be used; another that is missing is stored as empty."""


class Table(NamedTuple):
    """A published file, and the table that its rows go to."""

    name: str
    file: str
    """Below the case's folder."""
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    """The columns by which the tools look rows up."""
    unique: tuple[str, ...]
    """The columns by which no two rows of a case agree."""

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def format(self) -> str:
        """`csv`, `json` or `jsonl`."""
        return self.file.rpartition(".")[2]


DOCUMENT = "document"
"""The column of a table of JSON objects that holds one as its text stands; the table's key are fields of it."""
CaseRows = Mapping[str, list[tuple[int, dict[str, str]]]]
"""By table: line in the file, and the row by column."""


class Layout(NamedTuple):
    """What an archive of one part of the benchmark holds."""

    tables: tuple[Table, ...]
    prefix: str
    """Of a case's folder, before its id."""
    member: re.Pattern[str]
    """A member's name as a whole: the case's id, and the file below the case's folder."""
    check: Callable[[str, CaseRows, Surprises], None]
    """Looks at a case as a whole, beyond the form of its values."""
    check_asked: Callable[[str, CaseRows, Iterable[tuple[str, str]], Surprises], None]
    """Compares a case with what its query says: (field, value) pairs."""

    def folder(self, case: str) -> str:
        """A case's folder, for messages."""
        return f"{self.prefix}{case}"


def _optional(name: str, form: Form = "any") -> Column:
    return Column(name, form, required=False)


_ROUTE = (
    Column("origin_city"),
    Column("destination_city"),
    Column("dep_date", "date"),
    Column("route_index", "integer"),
    Column("segment_index", "integer"),
    Column("seat_class"),
    Column("seat_status", "any"),
    Column("dep_station_code", "any"),
    Column("dep_station_name"),
    Column("arr_station_code", "any"),
    Column("arr_station_name"),
    Column("dep_datetime", "datetime"),
    Column("arr_datetime", "datetime"),
    Column("duration", "integer"),
    Column("price", "number"),
)
_ROUTE_KEY = ("origin_city", "destination_city", "dep_date")
_ROUTE_UNIQUE = (*_ROUTE_KEY, "route_index", "segment_index", "seat_class")
_PLACE = (Column("latitude", "coordinate"), Column("longitude", "coordinate"))

TRAINS = Table(
    "trains",
    "trains/trains.csv",
    (*_ROUTE, Column("train_type"), Column("train_no")),
    _ROUTE_KEY,
    _ROUTE_UNIQUE,
)
FLIGHTS = Table(
    "flights",
    "flights/flights.csv",
    (
        *_ROUTE,
        Column("airline"),
        Column("flight_no"),
        Column("equip_size", "any"),
        Column("equip_type", "any"),
        Column("manufacturer", "any"),
    ),
    _ROUTE_KEY,
    _ROUTE_UNIQUE,
)
HOTELS = Table(
    "hotels",
    "hotels/hotels.csv",
    (
        Column("name"),
        _optional("address"),
        *_PLACE,
        _optional("decoration_time"),
        Column("hotel_star", "integer"),
        Column("price", "number"),
        Column("score", "number"),
        Column("brand", "any"),
        _optional("services"),
        _optional("city"),
    ),
    ("name",),
    ("name",),
)
ATTRACTIONS = Table(
    "attractions",
    "attractions/attractions.csv",
    (
        _optional("attraction_id", "text"),
        Column("attraction_name"),
        _optional("city", "text"),
        _optional("address"),
        *_PLACE,
        _optional("description", "text"),
        Column("rating", "number"),
        Column("opening_time", "any"),
        Column("closing_time", "any"),
        _optional("closing_dates"),
        Column("min_visit_hours", "number"),
        Column("max_visit_hours", "number"),
        Column("ticket_price", "number"),
        Column("attraction_type"),
    ),
    ("attraction_name",),
    ("attraction_name",),
)
LOCATIONS = Table(
    "locations",
    "locations/locations_coords.csv",
    (Column("poi_name"), *_PLACE, _optional("poi_type")),
    ("poi_name",),
    ("poi_name",),
)
DISTANCES = Table(
    "distances",
    "transportation/distance_matrix.csv",
    (
        Column("origin", "point"),
        Column("destination", "point"),
        Column("distance_meters", "number"),
        Column("duration_minutes", "number"),
        Column("cost", "number"),
    ),
    ("origin", "destination"),
    ("origin", "destination"),
)
RESTAURANTS = Table(
    "restaurants",
    "restaurants/restaurants.csv",
    (
        _optional("restaurant_id"),
        Column("restaurant_name"),
        *_PLACE,
        Column("price_per_person", "number"),
        Column("cuisine", "any"),
        Column("opening_time", "any"),
        Column("closing_time", "any"),
        _optional("nearby_attraction_name"),
        Column("rating", "number"),
        _optional("tags"),
        Column("query_latitude", "coordinate"),
        Column("query_longitude", "coordinate"),
    ),
    ("query_latitude", "query_longitude"),
    ("query_latitude", "query_longitude", "restaurant_name"),
)
TABLES = (TRAINS, FLIGHTS, HOTELS, ATTRACTIONS, LOCATIONS, DISTANCES, RESTAURANTS)


def case_name(part: str, number: str) -> str:
    """What a row's `extra_info.case_id` says: part and the query's id, for example `en/17` or `shopping_1/17`."""
    return f"{part}/{number}"


def point(row: Mapping[str, str], prefix: str = "") -> str:
    """A row's coordinates in the form of the distance matrix."""
    return f"{row[f'{prefix}latitude']},{row[f'{prefix}longitude']}"
