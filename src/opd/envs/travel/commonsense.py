"""Commonsense constraints: what every plan must keep to, whoever travels. `COMMONSENSE` names them."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from opd.envs.travel.case import Case, Check
from opd.envs.travel.entries import clock
from opd.envs.travel.geography import transfer_minutes
from opd.envs.travel.itinerary import Stop, cost

MIN_MEAL_MINUTES = 30
STATION_MINUTES = 30
"""Between a trip and what comes before or after it."""
MEALS_OF_A_FULL_DAY = 2


def days_complete(case: Case) -> Iterator[str]:
    """The days are 1 to the task's number, in order, each with something to do."""
    numbers = [day.day for day in case.plan.days]
    if numbers != list(range(1, case.task.num_days + 1)):
        yield f"the days are {numbers[:20]}, not 1 to {case.task.num_days}"
    for day in case.plan.days:
        if not day.activities:
            yield f"day {day.day} has no activity"


def entries_exist(case: Case) -> Iterator[str]:
    """Everything the plan names is in the database, in the city where the travellers are."""
    if not case.itinerary.stops:
        yield "the plan names nothing"
    for stop in case.itinerary.stops:
        if not stop.exists:
            yield f"{_where(stop)}: {stop.city.name} has no such {stop.activity.type}"
    for night in case.itinerary.nights:
        if night.name is not None and night.hotel is None:
            yield f"night {night.day + 1}: {night.city.name} has no hotel {night.name[:80]!r}"


def route_closed(case: Case) -> Iterator[str]:
    """From the origin through the destinations in their order and back, each trip leaving from where one is."""
    for stop in case.trips():
        if stop.trip is not None and stop.trip.from_city_id != stop.city.id:
            yield f"{_where(stop)}: does not leave from {stop.city.name}"
    visited = [case.itinerary.origin.id]
    visited += [s.trip.to_city_id for s in case.trips() if s.trip is not None and s.trip.from_city_id == s.city.id]
    wanted = [case.itinerary.origin.id, *(city.id for city in case.itinerary.destinations), case.itinerary.origin.id]
    if _without_repeats(visited) != _without_repeats(wanted):
        yield "the route is not origin, destinations in their order, origin"


def trips_on_timetable(case: Case) -> Iterator[str]:
    """Every trip runs on its day and is entered with the timetable's times."""
    yield from _nothing_to_judge(case)
    for stop in case.trips():
        trip = stop.trip
        if trip is None:
            continue
        if not trip.runs_on(stop.date.weekday()):
            yield f"{_where(stop)}: does not run on {stop.date}"
        if (stop.activity.start, stop.activity.end) != (trip.departs, trip.arrives):
            yield f"{_where(stop)}: runs from {clock(trip.departs)} to {clock(trip.arrives)}"


def times_in_order(case: Case) -> Iterator[str]:
    """Every activity ends after it begins, and none begins before the one before it has ended."""
    yield from _nothing_to_judge(case)
    for stop in case.itinerary.stops:
        if stop.activity.start >= stop.activity.end:
            yield f"{_where(stop)}: ends at {clock(stop.activity.end)}, not after it begins"
    for before, after in _same_day(case):
        if after.activity.start < before.activity.end:
            yield f"{_where(after)}: begins before {before.activity.name[:80]} has ended"


def transfers_possible(case: Case) -> Iterator[str]:
    """Between two activities of a day lies the time it takes to get from one to the other."""
    yield from _nothing_to_judge(case)
    for before, after in _same_day(case):
        gap = after.activity.start - before.activity.end
        if before.place is not None and after.place is not None:
            needed = transfer_minutes(before.place, after.place) if before.city.id == after.city.id else 0
        else:
            needed = STATION_MINUTES
        if gap < needed:
            yield f"{_where(after)}: {gap} minutes after {before.activity.name[:80]}, getting there takes {needed}"


def open_when_visited(case: Case) -> Iterator[str]:
    """Sights and restaurants are open from the visit's beginning to its end."""
    yield from _nothing_to_judge(case)
    for stop in case.places():
        place = stop.place
        if place is None:
            continue
        if stop.date.weekday() == place.closed_weekday:
            yield f"{_where(stop)}: is closed on {stop.date}"
        elif stop.activity.start < place.opens or stop.activity.end > place.closes:
            yield f"{_where(stop)}: is open from {clock(place.opens)} to {clock(place.closes)}"


def visits_long_enough(case: Case) -> Iterator[str]:
    """A sight gets the minutes that it takes, a meal half an hour."""
    yield from _nothing_to_judge(case)
    for stop in case.places():
        place = stop.place
        needed = MIN_MEAL_MINUTES if place is None or place.kind == "restaurant" else place.visit_minutes
        if stop.activity.end - stop.activity.start < needed:
            yield f"{_where(stop)}: takes at least {needed} minutes"


def hotel_every_night(case: Case) -> Iterator[str]:
    """Every night but the last day's is spent in a hotel of the city one is in; a day in one's own city needs none."""
    yield from _nothing_to_judge(case)
    *nights, last = case.itinerary.nights
    for night in nights:
        if night.hotel is None:
            yield f"night {night.day + 1}: no hotel in {night.city.name}"
    if last.name is not None:
        yield "the last day ends at home, without a hotel"


def meals_enough(case: Case) -> Iterator[str]:
    """At least one meal a day, two on a day without a trip."""
    meals = Counter(stop.day for stop in case.places() if stop.activity.type == "meal")
    travelling = {stop.day for stop in case.trips()}
    for day in range(case.task.num_days):
        needed = 1 if day in travelling else MEALS_OF_A_FULL_DAY
        if meals[day] < needed:
            yield f"day {day + 1} has {meals[day]} meal(s), needs {needed}"


def sights_enough(case: Case) -> Iterator[str]:
    """A sight on every day without a trip, and one on the whole trip."""
    sights = Counter(stop.day for stop in case.places() if stop.activity.type == "attraction")
    travelling = {stop.day for stop in case.trips()}
    if not sights:
        yield "no sight is visited"
    for day in range(case.task.num_days):
        if day not in travelling and not sights[day]:
            yield f"day {day + 1} has no sight"


def nothing_twice(case: Case) -> Iterator[str]:
    """No sight and no restaurant comes twice."""
    yield from _nothing_to_judge(case)
    visits = Counter((s.city.id, s.place.kind, s.place.name) for s in case.places() if s.place is not None)
    for (_, _, name), num in sorted(visits.items()):
        if num > 1:
            yield f"{name} comes {num} times"


def cost_stated(case: Case) -> Iterator[str]:
    """`total_cost` is what everything in the plan costs the whole party."""
    yield from _nothing_to_judge(case)
    right = cost(case.itinerary, case.task.num_people)
    if case.plan.total_cost != right:
        yield f"total_cost is {str(case.plan.total_cost)[:20]}, everything comes to {right}"


COMMONSENSE: dict[str, Check] = {
    check.__name__: check
    for check in (
        days_complete,
        entries_exist,
        route_closed,
        trips_on_timetable,
        times_in_order,
        transfers_possible,
        open_when_visited,
        visits_long_enough,
        hotel_every_night,
        meals_enough,
        sights_enough,
        nothing_twice,
        cost_stated,
    )
}


def _nothing_to_judge(case: Case) -> Iterator[str]:
    """A violation where nothing in the plan exists: an empty plan keeps to no rule."""
    if not any(stop.exists for stop in case.itinerary.stops):
        yield "the plan holds nothing that exists"


def _same_day(case: Case) -> Iterator[tuple[Stop, Stop]]:
    return ((a, b) for a, b in pairwise(case.itinerary.stops) if a.day == b.day)


def _without_repeats(cities: list[int]) -> list[int]:
    return [city for index, city in enumerate(cities) if index == 0 or city != cities[index - 1]]


def _where(stop: Stop) -> str:
    return f"day {stop.day + 1}, {clock(stop.activity.start)}, {stop.activity.name[:80]}"
