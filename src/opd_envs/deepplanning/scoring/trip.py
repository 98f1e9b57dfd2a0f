"""Input of a rule: a plan, its query and the case's entries."""

import re
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple

from opd_envs.deepplanning.database import Case
from opd_envs.deepplanning.layout import (
    ATTRACTIONS,
    DISTANCES,
    FLIGHTS,
    HOTELS,
    LOCATIONS,
    RESTAURANTS,
    TRAINS,
    Table,
)
from opd_envs.deepplanning.scoring.plan import INTERCITY, Day, Plan, stated_minutes
from opd_envs.deepplanning.task import BenchmarkTrip

Row = dict[str, str]
_BRACKETS = re.compile(r"[（(].*?[)）]")
_ROUTE = re.compile(r"from\s+(\S.*?)\s+to\s+([^,]+)")
_TWO_CHARACTERS = re.compile("[\u4e00-\u9fa5]{2}")
_POINT = re.compile(r"\s*([-0-9.]+)\s*,\s*([-0-9.]+)\s*")


def city(text: str) -> str:
    """Return a city's name without text in brackets."""
    return _BRACKETS.sub("", text).strip()


def route_of(current_city: str) -> tuple[str, str] | None:
    """Return origin and destination of a day that changes city (`from A to B`), None for a day in one city."""
    found = _ROUTE.search(current_city)
    if found is None or not found[2].strip():
        return None
    return city(found[1]), city(found[2])


class Entries:
    """A case as the rules see it; of entries with the same name the last counts, as in the benchmark."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self.hotels = self._by_name(HOTELS, "name")
        self.attractions = self._by_name(ATTRACTIONS, "attraction_name")
        self.restaurants = self._by_name(RESTAURANTS, "restaurant_name")
        self.places = self._by_name(LOCATIONS, "poi_name")
        """Everything that has coordinates."""

    @cached_property
    def _stations(self) -> dict[str, str]:
        """Cities of stations and airports, by the timetables."""
        found = {}
        for table in (FLIGHTS, TRAINS):
            for row in self._case.rows(table):
                for station, of in (("dep_station_name", "origin_city"), ("arr_station_name", "destination_city")):
                    if row[station].strip() and row[of].strip():
                        found[row[station].strip()] = city(row[of].strip())
        return found

    @cached_property
    def prices(self) -> dict[str, list[str]]:
        """Prices of each flight, else train, by its number."""
        prices: dict[str, list[str]] = {}
        for table, number in ((TRAINS, "train_no"), (FLIGHTS, "flight_no")):
            found: dict[str, list[str]] = {}
            for row in self._case.rows(table):
                if row[number].strip():
                    found.setdefault(row[number].strip(), []).append(row["price"])
            prices |= found
        return prices

    def city_of(self, station: str) -> str | None:
        """Return the city of a station: by the timetables, else the two Chinese characters at its name's beginning."""
        if station in self._stations:
            return self._stations[station]
        found = _TWO_CHARACTERS.match(station)
        return None if found is None else found[0]

    def minutes(self, origin: str, destination: str) -> float | None:
        """Return the minutes of the way; None where a place has no coordinates or the matrix no such way."""
        start, end = self._point(origin), self._point(destination)
        if start is None or end is None:
            return None
        found = self._case.rows(DISTANCES, origin=start, destination=end)
        try:
            return float(found[0]["duration_minutes"]) if found else None
        except ValueError:
            return None

    def _point(self, name: str) -> str | None:
        row = self.places.get(name)
        if row is not None:
            return f"{row['latitude'].strip()},{row['longitude'].strip()}"
        found = _POINT.fullmatch(name)  # coordinates in place of a name
        try:
            return None if found is None else f"{float(found[1])},{float(found[2])}"
        except ValueError:
            return None

    def _by_name(self, table: Table, column: str) -> dict[str, Row]:
        return {name: row for row in self._case.rows(table) if (name := row[column].strip())}


class PlannedTrip(NamedTuple):
    """One plan to judge."""

    plan: Plan
    task: BenchmarkTrip
    entries: Entries


Rule = Callable[[PlannedTrip], bool]
"""Returns whether the plan keeps to the rule."""


class Visited(NamedTuple):
    """A day and its part in the route."""

    day: Day
    stays: bool
    """It changes no city."""
    leaves_at: float | None = None
    """Hour at which its first trip with a time leaves a visited city, in which the plan left the travellers, not home."""
    arrives_at: float | None = None
    """Hour at which that trip arrives, on a day that ends in a visited city: of several trips too the first, as in the
    benchmark."""


def visits(trip: PlannedTrip) -> Iterator[Visited]:
    """Yield the plan's days in order."""
    home = here = city(trip.task.origin)
    for day in trip.plan.days:
        route = route_of(day.current_city)
        if route is None:
            yield Visited(day, stays=True)
            continue
        origin, destination = route
        leaves_at, arrives_at = _hour(day, 0), _hour(day, 1)
        is_away, is_visit = origin == here != home, destination != home
        yield Visited(day, False, leaves_at if is_away else None, arrives_at if is_visit else None)
        here = destination


def _hour(day: Day, end: int) -> float | None:
    minutes = (stated_minutes(trip.time_slot)[end] for trip in day.of(INTERCITY))
    return next((minute / 60 for minute in minutes if minute is not None), None)
