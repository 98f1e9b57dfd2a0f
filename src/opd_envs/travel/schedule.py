"""Reference plans: each keeps to every rule, and so shows that its generated task has a solution."""

import datetime
import random
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from opd_envs.travel.constraints import MIN_MEAL_MINUTES, STATION_MINUTES
from opd_envs.travel.database import Database
from opd_envs.travel.entries import City, Mode, Place, PlaceKind, Trip, clock, transfer_minutes

DAY_START = 9 * 60
DAY_END = 21 * 60
_GRID_MINUTES = 5
_MEAL_MINUTES = 2 * MIN_MEAL_MINUTES


class Unplannable(Exception):
    """A draw of a trip without a plan; another draw may have one."""


class Visit(NamedTuple):
    """A sight or a meal of the plan."""

    place: Place
    start: int
    end: int

    def entry(self) -> dict[str, str]:
        """Return the entry in the plan's JSON."""
        kind = "meal" if self.place.kind == "restaurant" else "attraction"
        return {"type": kind, "name": self.place.name, "start": clock(self.start), "end": clock(self.end)}


class DayPlan(NamedTuple):
    """One day of the plan: at most one trip, at its beginning or its end."""

    first_trip: Trip | None
    visits: tuple[Visit, ...]
    last_trip: Trip | None
    hotel: Place | None

    def entry(self, number: int) -> dict[str, object]:
        """Return the entry in the plan's JSON."""
        first, last = ([_trip_entry(trip)] if trip else [] for trip in (self.first_trip, self.last_trip))
        activities = [*first, *(visit.entry() for visit in self.visits), *last]
        return {"day": number, "activities": activities, "hotel": None if self.hotel is None else self.hotel.name}


class Route(NamedTuple):
    """Cities of a trip, one a day, and the trips that begin or end a day."""

    cities: tuple[City, ...]
    first_trips: dict[int, Trip]
    last_trips: dict[int, Trip]
    """By day, from 0."""


class Scheduler:
    """Visits of days; no place comes twice in a scheduler's plans."""

    def __init__(self, database: Database, rng: random.Random) -> None:
        self._database = database
        self._rng = rng
        self._used: set[tuple[int, PlaceKind, int]] = set()

    def plan(self, route: Route, start_date: datetime.date) -> list[DayPlan]:
        """Return a plan for the route.

        Raises:
            Unplannable: the drawn visits do not fit a day.
        """
        num_days = len(route.cities)
        hotels: dict[int, Place] = {}
        days = []
        for index, city in enumerate(route.cities):
            hotel = None
            if index < num_days - 1:
                hotel = hotels.setdefault(city.id, self._rng.choice(self._database.places(city, "hotel")))
            first, last = route.first_trips.get(index), route.last_trips.get(index)
            date = start_date + datetime.timedelta(days=index)
            days.append(DayPlan(first, self._visits(city, date, first, last), last, hotel))
        return days

    def _visits(self, city: City, date: datetime.date, first: Trip | None, last: Trip | None) -> tuple[Visit, ...]:
        cursor = DAY_START if first is None else first.arrives + STATION_MINUTES
        limit = DAY_END if last is None else last.departs - STATION_MINUTES
        kinds: Sequence[PlaceKind]
        if first is None and last is None:
            kinds = ("attraction", "restaurant", "attraction", "restaurant")
        else:
            kinds = ("restaurant", "attraction") if last is None else ("attraction", "restaurant")
        visits: list[Visit] = []
        for kind in kinds:
            visit = self._next(city, date, kind, cursor, limit, visits[-1].place if visits else None)
            if visit is not None:
                visits.append(visit)
                cursor = visit.end
        kinds_found = [visit.place.kind for visit in visits]
        meals_needed = 2 if first is None and last is None else 1
        if kinds_found.count("restaurant") < meals_needed or "attraction" not in kinds_found:
            raise Unplannable(f"no order of visits fits a day in {city.name}")
        return tuple(visits)

    def _next(
        self, city: City, date: datetime.date, kind: PlaceKind, cursor: int, limit: int, before: Place | None
    ) -> Visit | None:
        """Return a visit of the first place of the kind, in drawn order, that fits after `cursor`."""
        candidates = self._database.places(city, kind)
        self._rng.shuffle(candidates)
        for place in candidates:
            if (place.city_id, place.kind, place.id) in self._used or date.weekday() == place.closed_weekday:
                continue
            transfer = 0 if before is None else transfer_minutes(before, place)
            start = -(-max(cursor + transfer, place.opens) // _GRID_MINUTES) * _GRID_MINUTES
            end = start + (_MEAL_MINUTES if kind == "restaurant" else place.visit_minutes)
            if end <= min(place.closes, limit):
                self._used.add((place.city_id, place.kind, place.id))
                return Visit(place, start, end)
        return None


def round_trip(
    database: Database,
    rng: random.Random,
    *,
    origin: City,
    start_date: datetime.date,
    days_in: Sequence[tuple[City, int]],
    mode: Mode | None,
) -> Route:
    """Return a route that leaves each city with a day's first suitable trip and goes home with the last one.

    Args:
        days_in: each destination with the number of days that begin or are spent there, in order.
        mode: the only mode; None means either, drawn for each trip.

    Raises:
        Unplannable: no trip connects two of the cities.
    """
    cities: list[City] = []
    first_trips: dict[int, Trip] = {}
    here = origin
    for city, num_days in days_in:
        first_trips[len(cities)] = _trip(database, rng, here, city, start_date, len(cities), mode, latest=False)
        cities += [city] * num_days
        here = city
    last_day = len(cities) - 1
    last = _trip(database, rng, here, origin, start_date, last_day, mode, latest=True)
    return Route(tuple(cities), first_trips, {last_day: last})


def connected(database: Database, city: City, mode: Mode | None) -> list[City]:
    """Return the cities that trips of the mode lead to, by id."""
    ids = {trip.to_city_id for trip in database.trips_from(city) if mode is None or trip.mode == mode}
    return [database.city_in(city.language, city_id) for city_id in sorted(ids)]


def _trip(
    database: Database,
    rng: random.Random,
    origin: City,
    destination: City,
    start_date: datetime.date,
    day: int,
    mode: Mode | None,
    *,
    latest: bool,
) -> Trip:
    weekday = (start_date + datetime.timedelta(days=day)).weekday()
    modes: Iterable[Mode] = rng.sample(["train", "flight"], 2) if mode is None else [mode]
    for candidate in modes:
        trips = [trip for trip in database.trips(origin, destination, candidate) if trip.runs_on(weekday)]
        if trips:
            return (max if latest else min)(trips, key=lambda trip: (trip.departs, trip.number))
    raise Unplannable(f"nothing runs from {origin.name} to {destination.name}")


def _trip_entry(trip: Trip) -> dict[str, str]:
    return {"type": trip.mode, "name": trip.number, "start": clock(trip.departs), "end": clock(trip.arrives)}
