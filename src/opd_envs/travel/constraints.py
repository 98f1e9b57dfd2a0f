"""Checks of a plan: every commonsense constraint, and the hard constraints of its task, each by its name."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from opd_envs.travel.database import Database
from opd_envs.travel.entries import minutes_of, transfer_minutes
from opd_envs.travel.itinerary import Itinerary, Stop, follow
from opd_envs.travel.plan import Plan
from opd_envs.travel.task import Trip

MIN_MEAL_MINUTES = 30
STATION_MINUTES = 30
"""Between a trip and the activity before or after it."""
MEALS_OF_A_FULL_DAY = 2


def days_complete(case: Itinerary) -> bool:
    """Check that the days are 1 to the task's number, in order, each with an activity."""
    days = case.plan.days
    return [day.day for day in days] == list(range(1, case.task.num_days + 1)) and all(day.activities for day in days)


def entries_exist(case: Itinerary) -> bool:
    """Check that every name of the plan is in the database, in the travellers' city."""
    nights = case.nights
    return all(stop.exists for stop in case.stops) and all((n.name is None) == (n.hotel is None) for n in nights)


def route_closed(case: Itinerary) -> bool:
    """Check the route: origin, destinations in their order, origin; each trip leaves from the travellers' city."""
    visited = [case.origin.id, *(trip.to_city_id for stop, trip in case.trips() if trip.from_city_id == stop.city.id)]
    wanted = [city.id for city in (case.origin, *case.destinations, case.origin)]
    leaves = all(trip.from_city_id == stop.city.id for stop, trip in case.trips())
    return leaves and [city for city, _ in groupby(visited)] == [city for city, _ in groupby(wanted)]


def trips_on_timetable(case: Itinerary) -> bool:
    """Check that every trip runs on its day and has the timetable's times."""
    return all(
        trip.runs_on(stop.date.weekday()) and (stop.activity.start, stop.activity.end) == (trip.departs, trip.arrives)
        for stop, trip in case.trips()
    )


def times_in_order(case: Itinerary) -> bool:
    """Check that every activity ends after its beginning, and that none begins before the end of the one before."""
    return all(stop.activity.start < stop.activity.end for stop in case.stops) and all(
        before.activity.end <= after.activity.start for before, after in _same_day(case)
    )


def transfers_possible(case: Itinerary) -> bool:
    """Check that two activities of a day have the time of the way between them."""

    def needed(before: Stop, after: Stop) -> int:
        if before.place is None or after.place is None:
            return STATION_MINUTES
        return transfer_minutes(before.place, after.place) if before.city.id == after.city.id else 0

    return all(b.activity.start - a.activity.end >= needed(a, b) for a, b in _same_day(case))


def open_when_visited(case: Itinerary) -> bool:
    """Check that sights and restaurants are open during the whole visit."""
    return all(
        stop.date.weekday() != place.closed_weekday
        and place.opens <= stop.activity.start
        and stop.activity.end <= place.closes
        for stop, place in case.places()
    )


def visits_long_enough(case: Itinerary) -> bool:
    """Check that a sight gets its minutes, and a meal half an hour."""
    return all(
        stop.activity.end - stop.activity.start
        >= (MIN_MEAL_MINUTES if place.kind == "restaurant" else place.visit_minutes)
        for stop, place in case.places()
    )


def hotel_every_night(case: Itinerary) -> bool:
    """Check that every night but the last day's has a hotel of the travellers' city, and the last day none."""
    *nights, last = case.nights
    return all(night.hotel is not None for night in nights) and last.name is None


def meals_enough(case: Itinerary) -> bool:
    """Check for a meal a day, two on a day without a trip."""
    meals = Counter(stop.day for stop, _ in case.places() if stop.activity.type == "meal")
    travelling = {stop.day for stop, _ in case.trips()}
    return all(meals[day] >= (1 if day in travelling else MEALS_OF_A_FULL_DAY) for day in range(case.task.num_days))


def sights_enough(case: Itinerary) -> bool:
    """Check for a sight on every day without a trip, and one on the whole trip."""
    sights = {stop.day for stop, _ in case.places() if stop.activity.type == "attraction"}
    travelling = {stop.day for stop, _ in case.trips()}
    return bool(sights) and all(day in travelling or day in sights for day in range(case.task.num_days))


def nothing_twice(case: Itinerary) -> bool:
    """Check that no sight and no restaurant comes twice."""
    visits = [(stop.city.id, place.kind, place.name) for stop, place in case.places()]
    return len(set(visits)) == len(visits)


def cost_stated(case: Itinerary) -> bool:
    """Check that `total_cost` is the cost of everything in the plan for the whole party."""
    return case.plan.total_cost == case.cost


Check = Callable[[Itinerary], bool]
COMMONSENSE: dict[str, Check] = {
    check.__name__: check
    for check in (
        days_complete, entries_exist, route_closed, trips_on_timetable, times_in_order, transfers_possible,
        open_when_visited, visits_long_enough, hotel_every_night, meals_enough, sights_enough, nothing_twice,
        cost_stated,
    )
}  # fmt: skip


def _same_day(case: Itinerary) -> Iterator[tuple[Stop, Stop]]:
    return ((a, b) for a, b in pairwise(case.stops) if a.day == b.day)


def _arrives_by(case: Itinerary, limit: str) -> bool:
    stop, trip = next(case.trips(), (None, None))
    return stop is not None and trip is not None and stop.day == 0 and trip.arrives <= minutes_of(limit)


HARD: dict[str, Callable[[Itinerary, Any], bool]] = {
    "budget": lambda case, most: case.cost <= most,
    "transport_mode": lambda case, mode: all(trip.mode == mode for _, trip in case.trips()),
    "hotel_min_stars": lambda case, fewest: all(hotel.stars >= fewest for hotel in case.hotels()),
    "hotel_feature": lambda case, feature: all(feature in hotel.features for hotel in case.hotels()),
    "hotel_max_price": lambda case, most: all(hotel.price <= most for hotel in case.hotels()),
    "must_visit": lambda case, sights: set(sights) <= {p.name for _, p in case.places() if p.kind == "attraction"},
    "cuisine": lambda case, cuisine: any((p.kind, p.category) == ("restaurant", cuisine) for _, p in case.places()),
    "arrive_by": _arrives_by,
}
"""Returns whether a plan meets a demand, by the demand's name (`HardConstraints`)."""
# Without these a plan is not the trip of the task, and meets no demand.
_PRECONDITIONS = ("days_complete", "entries_exist", "route_closed")


class Judgement(NamedTuple):
    """The constraints of a task by name: satisfied or not."""

    commonsense: dict[str, bool]
    hard: dict[str, bool]

    @property
    def passed(self) -> bool:
        """Every constraint is satisfied."""
        return all((*self.commonsense.values(), *self.hard.values()))

    @property
    def score(self) -> float:
        """In [0, 1]: half for the share of commonsense constraints, half for the hard ones; without demands the first."""
        shares = [share(part.values()) for part in self if part]
        return sum(shares) / len(shares)


def share(holds: Iterable[bool]) -> float:
    """Return the share of satisfied constraints."""
    every = list(holds)
    return sum(every) / len(every)


def judge(plan: Plan, task: Trip, database: Database) -> Judgement:
    """Judge a plan in the database of its episode.

    Raises:
        KeyError: the task names a city that the database does not have.
    """
    case = follow(plan, task, database)
    if not any(stop.exists for stop in case.stops):
        return no_plan(task)  # an empty plan keeps to most rules
    commonsense = {name: check(case) for name, check in COMMONSENSE.items()}
    is_the_trip = all(commonsense[name] for name in _PRECONDITIONS)
    return Judgement(
        commonsense, {name: is_the_trip and HARD[name](case, wanted) for name, wanted in task.hard.asked()}
    )


def no_plan(task: Trip) -> Judgement:
    """Return the judgement of an answer without a plan: everything is violated."""
    return Judgement(dict.fromkeys(COMMONSENSE, False), {name: False for name, _ in task.hard.asked()})
