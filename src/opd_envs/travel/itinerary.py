"""A plan followed through the database: the travellers' city at each stop, its entry, and the cost of all."""

import datetime
from collections.abc import Iterator
from typing import NamedTuple

from opd_envs.travel.database import Database
from opd_envs.travel.entries import City, Place, Trip
from opd_envs.travel.plan import Activity, Plan
from opd_envs.travel.task import Trip as TripTask

_PLACE_KINDS = {"attraction": "attraction", "meal": "restaurant"}


class Stop(NamedTuple):
    """One activity, looked up."""

    day: int
    """From 0."""
    date: datetime.date
    activity: Activity
    city: City
    """The travellers' city when it begins."""
    place: Place | None
    """The place of this name and kind in the city; None for a trip, or where there is none."""
    trip: Trip | None
    """The trip of this number and mode, from this or another city; None for a place, or where there is none."""

    @property
    def exists(self) -> bool:
        """The database has it."""
        return self.place is not None or self.trip is not None


class Night(NamedTuple):
    """The end of a day."""

    name: str | None
    """The hotel as the plan names it."""
    hotel: Place | None


class Itinerary(NamedTuple):
    """A whole plan, looked up."""

    task: TripTask
    plan: Plan
    origin: City
    destinations: tuple[City, ...]
    stops: tuple[Stop, ...]
    nights: tuple[Night, ...]
    """One a day, the last day's too."""

    def places(self) -> Iterator[tuple[Stop, Place]]:
        """Yield the stops at sights and restaurants that exist."""
        return ((stop, stop.place) for stop in self.stops if stop.place is not None)

    def trips(self) -> Iterator[tuple[Stop, Trip]]:
        """Yield the stops that are trips that exist."""
        return ((stop, stop.trip) for stop in self.stops if stop.trip is not None)

    def hotels(self) -> Iterator[Place]:
        """Yield the hotels of all nights that exist."""
        return (night.hotel for night in self.nights if night.hotel is not None)

    @property
    def cost(self) -> int:
        """The cost of everything that exists in the plan, for the whole party; two share a room."""
        heads = sum(entry.price for stop in self.stops if (entry := stop.place or stop.trip) is not None)
        people = self.task.num_people
        return heads * people + sum(hotel.price for hotel in self.hotels()) * ((people + 1) // 2)


def follow(plan: Plan, task: TripTask, database: Database) -> Itinerary:
    """Walk through the plan from the origin; a trip from another city moves no traveller.

    Raises:
        KeyError: the database has not a city of the task.
    """
    origin, *destinations = map(database.known_city, (task.origin, *task.destinations))
    stops: list[Stop] = []
    nights: list[Night] = []
    here = origin
    for index, day in enumerate(plan.days):
        date = task.start_date + datetime.timedelta(days=index)
        for activity in day.activities:
            place, trip = _entry(activity, here, database)
            stops.append(Stop(index, date, activity, here, place, trip))
            if trip is not None and trip.from_city_id == here.id:
                here = database.city_in(here.language, trip.to_city_id)
        hotel = None if day.hotel is None else database.place(here, day.hotel)
        nights.append(Night(day.hotel, hotel if hotel is not None and hotel.kind == "hotel" else None))
    return Itinerary(task, plan, origin, tuple(destinations), tuple(stops), tuple(nights))


def _entry(activity: Activity, here: City, database: Database) -> tuple[Place | None, Trip | None]:
    kind = _PLACE_KINDS.get(activity.type)
    if kind is None:
        trip = database.trip(activity.name)
        return None, trip if trip is not None and trip.mode == activity.type else None
    place = database.place(here, activity.name)
    return place if place is not None and place.kind == kind else None, None
