"""A plan followed through the database: where the travellers are at each stop, what it is and what it costs."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from typing import NamedTuple

from opd_envs.travel.database import Database
from opd_envs.travel.entries import City, Place, Trip
from opd_envs.travel.plan import Activity, Day, Plan
from opd_envs.travel.task import Trip as TripTask

_PLACE_KINDS = {"attraction": "attraction", "meal": "restaurant"}


class Stop(NamedTuple):
    """One activity, looked up."""

    day: int
    """From 0."""
    date: datetime.date
    activity: Activity
    city: City
    """Where the travellers are when it begins."""
    place: Place | None
    """What `activity.name` names in that city; None for a trip, or where there is no such place of that kind."""
    trip: Trip | None
    """The trip that leaves from that city or any other; None for a place, or where there is no such trip."""

    @property
    def exists(self) -> bool:
        """Whether the database knows it."""
        return self.place is not None or self.trip is not None


class Night(NamedTuple):
    """The end of a day."""

    day: int
    city: City
    name: str | None
    """As the plan names the hotel."""
    hotel: Place | None


class Itinerary(NamedTuple):
    """A whole plan, looked up."""

    origin: City
    destinations: tuple[City, ...]
    stops: tuple[Stop, ...]
    nights: tuple[Night, ...]
    """One a day, the last day's too."""


def num_rooms(num_people: int) -> int:
    """Rooms that a party needs: a room sleeps two."""
    return (num_people + 1) // 2


def follow(plan: Plan, task: TripTask, database: Database) -> Itinerary:
    """Walks through the plan from the origin; a trip that does not leave from where one is moves nobody.

    Raises:
        KeyError: a city of the *task* that the database does not have.
    """
    origin, *destinations = (_city(database, name) for name in (task.origin, *task.destinations))
    stops: list[Stop] = []
    nights: list[Night] = []
    here = origin
    for index, day in enumerate(plan.days):
        date = task.start_date + datetime.timedelta(days=index)
        for stop in _stops(day, index, date, here, database):
            stops.append(stop)
            if stop.trip is not None and stop.trip.from_city_id == here.id:
                here = database.city_in(here.language, stop.trip.to_city_id)
        hotel = None if day.hotel is None else database.place(here, day.hotel)
        nights.append(Night(index, here, day.hotel, hotel if hotel is not None and hotel.kind == "hotel" else None))
    return Itinerary(origin, tuple(destinations), tuple(stops), tuple(nights))


def _stops(day: Day, index: int, date: datetime.date, here: City, database: Database) -> Iterator[Stop]:
    for activity in day.activities:
        if activity.type in _PLACE_KINDS:
            place = database.place(here, activity.name)
            if place is not None and place.kind != _PLACE_KINDS[activity.type]:
                place = None
            yield Stop(index, date, activity, here, place, None)
            continue
        trip = database.trip(activity.name)
        if trip is not None and trip.mode != activity.type:
            trip = None
        yield Stop(index, date, activity, here, None, trip)
        if trip is not None and trip.from_city_id == here.id:
            here = database.city_in(here.language, trip.to_city_id)


def cost(itinerary: Itinerary, num_people: int) -> int:
    """What everything that exists in the plan costs the whole party."""
    total = sum((stop.place or stop.trip).price * num_people for stop in itinerary.stops if stop.exists)  # type: ignore[union-attr, misc]
    return total + sum(
        night.hotel.price * num_rooms(num_people) for night in itinerary.nights if night.hotel is not None
    )


def _city(database: Database, name: str) -> City:
    city = database.city(name)
    if city is None:
        raise KeyError(
            f"the task names the city {name!r}, which the database does not have: it was made for another one"
        )
    return city


class Case(NamedTuple):
    """One plan to judge."""

    task: TripTask
    plan: Plan
    itinerary: Itinerary

    def places(self) -> Iterator[Stop]:
        """The stops at sights and restaurants that exist."""
        return (stop for stop in self.itinerary.stops if stop.place is not None)

    def trips(self) -> Iterator[Stop]:
        """The stops that are trips that exist."""
        return (stop for stop in self.itinerary.stops if stop.trip is not None)


Check = Callable[[Case], Iterator[str]]
"""Yields one sentence a violation; nothing: satisfied."""


class Verdict(NamedTuple):
    """What became of one constraint."""

    name: str
    violations: tuple[str, ...]

    @property
    def satisfied(self) -> bool:
        """Whether there is no violation."""
        return not self.violations
