"""The published layout: archives, query files, and the columns that the benchmark's tools and evaluation read."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from opd_envs import LANGUAGES, Language

FOLDER = Path("DeepPlanning/travelplanning")
"""Folder below the data folder, as in Qwen-Agent's `benchmark/deepplanning`."""
PUBLISHED_AT = "https://github.com/QwenLM/Qwen-Agent (benchmark/deepplanning) and the data set Qwen/DeepPlanning"
ARCHIVES: Mapping[Language, Path] = {name: FOLDER / f"database/database_{name}.zip" for name in LANGUAGES}
QUERY_FILES: Mapping[Language, Path] = {name: FOLDER / f"data/travelplanning_query_{name}.json" for name in LANGUAGES}


class Table(NamedTuple):
    """A published file, and the table that holds its rows."""

    name: str
    file: str
    """Path below the case's folder."""
    columns: tuple[str, ...]
    optional: frozenset[str]
    """Columns that the file may lack; the table then holds empty text."""
    key: tuple[str, ...]
    """Columns by which the tools look rows up."""


def _table(name: str, file: str, columns: str, key: str) -> Table:
    """Return a table; a column with a question mark is optional."""
    names = columns.split()
    optional = frozenset(column.rstrip("?") for column in names if column.endswith("?"))
    return Table(name, file, tuple(column.rstrip("?") for column in names), optional, tuple(key.split()))


_ROUTE = (
    "origin_city destination_city dep_date route_index segment_index seat_class seat_status dep_station_code "
    "dep_station_name arr_station_code arr_station_name dep_datetime arr_datetime duration price "
)
_ROUTE_KEY = "origin_city destination_city dep_date"
TRAINS = _table("trains", "trains/trains.csv", _ROUTE + "train_type train_no", _ROUTE_KEY)
FLIGHTS = _table(
    "flights",
    "flights/flights.csv",
    _ROUTE + "airline flight_no equip_size equip_type manufacturer",
    _ROUTE_KEY,
)
HOTELS = _table(
    "hotels",
    "hotels/hotels.csv",
    "name address? latitude longitude decoration_time? hotel_star price score brand services? city?",
    "name",
)
ATTRACTIONS = _table(
    "attractions",
    "attractions/attractions.csv",
    "attraction_id? attraction_name city? address? latitude longitude description? rating opening_time closing_time "
    "closing_dates? min_visit_hours max_visit_hours ticket_price attraction_type",
    "attraction_name",
)
LOCATIONS = _table("locations", "locations/locations_coords.csv", "poi_name latitude longitude poi_type?", "poi_name")
DISTANCES = _table(
    "distances",
    "transportation/distance_matrix.csv",
    "origin destination distance_meters duration_minutes cost",
    "origin destination",
)
RESTAURANTS = _table(
    "restaurants",
    "restaurants/restaurants.csv",
    "restaurant_id? restaurant_name latitude longitude price_per_person cuisine opening_time closing_time "
    "nearby_attraction_name? rating tags? query_latitude query_longitude",
    "query_latitude query_longitude",
)
TABLES = (TRAINS, FLIGHTS, HOTELS, ATTRACTIONS, LOCATIONS, DISTANCES, RESTAURANTS)


def case_name(language: str, number: str) -> str:
    """Return the `extra_info.case_id` of a query, for example `en/17`."""
    return f"{language}/{number}"
