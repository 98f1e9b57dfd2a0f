"""Rules of the benchmark on cost, diversity, route, sandbox and structure of a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from opd_envs.deepplanning.scoring.plan import (
    ATTRACTION,
    HOTEL,
    INTERCITY,
    MEAL,
    TRAVEL_CITY,
    Activity,
    Cost,
    Day,
    amount,
    stated_minutes,
)
from opd_envs.deepplanning.scoring.trip import PlannedTrip, Row, Visited, city, route_of, visits
from opd_envs.travel.entries import MINUTES_PER_DAY

_TOLERANCE = 0.10
_SEATS_OF_A_TAXI = 4


def stated_cost(trip: PlannedTrip) -> float:
    """All stated costs for the whole party.

    A day's first trip (each segment of a route states the price of the whole), meals and tickets a person; ways in the
    city a taxi for four; hotels a room and night, without the last day's. A cost below 0 counts as none.
    """
    people, rooms, days = trip.task.num_people, trip.task.num_rooms, trip.plan.days
    taxis = max(1, -(-people // _SEATS_OF_A_TAXI))
    each = sum(_sum(day, MEAL) + _sum(day, ATTRACTION) + _fare(day) for day in days)
    stays = sum(_cost(day.stay.price) for day in days[:-1] if day.stay is not None)
    return each * people + stays * rooms + sum(_sum(day, TRAVEL_CITY) for day in days) * taxis


def cost_calculation_correctness(trip: PlannedTrip) -> Iterator[str]:
    """The stated total is within a tenth of itself from the sum of what is stated."""
    total, spent = trip.plan.total, stated_cost(trip)
    if total is None:
        yield "the plan has no total"
    elif total < 0 or not (abs(spent - total) / total <= _TOLERANCE if total else spent == 0):
        yield f"the total is stated as {total:g}, the costs come to {spent:g}"


def _cost(stated: Cost) -> float:
    return max(0.0, amount(stated) or 0.0)


def _sum(day: Day, activity_type: str) -> float:
    return sum(_cost(activity.details.cost) for activity in day.of(activity_type))


def _fare(day: Day) -> float:
    """The first cost that is a number; of a trip that has none at all, 0, as the benchmark reads it."""
    fares = (amount(ride.details.cost if "cost" in ride.details.model_fields_set else 0) for ride in day.of(INTERCITY))
    return max(0.0, next((fare for fare in fares if fare is not None), 0.0))


def diverse_meal_options(trip: PlannedTrip) -> Iterator[str]:
    """No restaurant comes twice."""
    return _repeats(trip, MEAL)


def diverse_attraction_options(trip: PlannedTrip) -> Iterator[str]:
    """No attraction comes twice."""
    return _repeats(trip, ATTRACTION)


def _repeats(trip: PlannedTrip, activity_type: str) -> Iterator[str]:
    names = Counter(activity.details.name for activity in trip.plan.of(activity_type))
    yield from (f"{name} comes {num} times" for name, num in names.items() if name and num > 1)


def valid_trip_duration(trip: PlannedTrip) -> Iterator[str]:
    """The plan has the query's number of days."""
    if len(trip.plan.days) != trip.task.num_days:
        yield f"the plan has {len(trip.plan.days)} days, the trip {trip.task.num_days}"


def closed_loop_route_structure(trip: PlannedTrip) -> Iterator[str]:
    """Where the first day changes city, it leaves home; where the last one does, it ends there."""
    home = city(trip.task.origin)
    first, last = route_of(trip.plan.days[0].current_city), route_of(trip.plan.days[-1].current_city)
    if first is not None and first[0] != home:
        yield f"the first day leaves {first[0]}, not {home}"
    if last is not None and last[1] != home:
        yield f"the last day ends in {last[1]}, not {home}"


def seamless_intercity_transfers(trip: PlannedTrip) -> Iterator[str]:
    """Each day begins where the one before ended; a change of city has a trip between stations of the two cities."""
    here = city(trip.task.origin)
    for number, day in enumerate(trip.plan.days, start=1):
        route = route_of(day.current_city)
        if route is None:
            if city(day.current_city) != here:
                yield f"day {number} is in {day.current_city or 'no city'}, the travellers are in {here}"
            continue
        if route[0] != here:
            yield f"day {number} leaves {route[0]}, the travellers are in {here}"
        stations = [(ride.details.origin, ride.details.destination) for ride in day.of(INTERCITY)]
        if route not in [(trip.entries.city_of(a), trip.entries.city_of(b)) for a, b in stations if a and b]:
            yield f"day {number} goes from {route[0]} to {route[1]} and has no {INTERCITY} between them"
        here = route[1]


_NO_HOTEL = "-"


def validated_accommodation(trip: PlannedTrip) -> Iterator[str]:
    """Each night's hotel exists and costs what is stated; hotels of activities, but for the last day's, exist."""
    hotels, days = trip.entries.hotels, trip.plan.days
    yield from _empty(hotels, "hotels")
    for day in days:
        stay = day.stay
        if stay is None or not stay.name or (day is days[-1] and stay.name == _NO_HOTEL):
            continue
        yield from _wrong(stay.name, stay.price, hotels, "price")
    for activity in (activity for day in days[:-1] for activity in day.of(HOTEL)):
        if activity.details.name and activity.details.name not in hotels:
            yield f"there is no hotel {activity.details.name}"


def validated_attractions(trip: PlannedTrip) -> Iterator[str]:
    """Each attraction exists and its ticket costs what is stated."""
    yield from _entries(trip.plan.of(ATTRACTION), trip.entries.attractions, "ticket_price", "attractions")


def validated_meals(trip: PlannedTrip) -> Iterator[str]:
    """Each restaurant exists and costs a person what is stated."""
    yield from _entries(trip.plan.of(MEAL), trip.entries.restaurants, "price_per_person", "restaurants")


def validated_transportation(trip: PlannedTrip) -> Iterator[str]:
    """Each trip has number, stations and cost; the number is in a timetable, and the cost one of its prices there."""
    for ride in trip.plan.of(INTERCITY):
        stated = ride.details
        if not (stated.number and stated.origin and stated.destination) or stated.cost in (None, ""):
            yield f"{ride.time_slot}: a trip needs number, from, to and cost"
            continue
        prices = trip.entries.prices(stated.number)
        if prices is None:
            yield f"no timetable has {stated.number}"
            continue
        cost = amount(stated.cost)
        listed = [price for price in map(amount, prices) if price is not None]
        if cost is not None and listed and round(cost) not in map(round, listed):
            yield f"{stated.number} costs {listed[0]:g}, not {cost:g}"


def _entries(activities: Iterable[Activity], table: Mapping[str, Row], column: str, what: str) -> Iterator[str]:
    yield from _empty(table, what)
    for activity in activities:
        yield from _wrong(activity.details.name, activity.details.cost, table, column)


def _empty(table: Mapping[str, Row], what: str) -> Iterator[str]:
    if not table:
        yield f"the case has no {what}"


def _wrong(name: str, cost: Cost, table: Mapping[str, Row], column: str) -> Iterator[str]:
    """Violations of one entry: prices are compared in whole units, and only a number is a price."""
    if name not in table:
        yield f"there is no {name or 'entry without a name'}"
        return
    price = amount(table[name][column])
    if price is not None and not (isinstance(cost, int | float) and round(cost) == round(price)):
        yield f"{name} costs {price:g}, not {cost}"


_BETWEEN_MEALS_MINUTES = 120
_LONG_VISIT_HOURS = 4.0


def traceable_accommodation(trip: PlannedTrip) -> Iterator[str]:
    """Every day but the last states its hotel and goes to one; the last states none."""
    *nights, last = trip.plan.days
    for number, day in enumerate(nights, start=1):
        if not any(day.of(HOTEL)) or (day.stay is None and not _in_words(day)):
            yield f"day {number} lacks its accommodation or an activity of type {HOTEL}"
    if (last.stay is not None and last.stay.name not in ("", "-")) or _in_words(last):
        yield "the last day has an accommodation"


def ends_with_accommodation(trip: PlannedTrip) -> Iterator[str]:
    """The last activity of every day but the last is of type hotel."""
    for number, day in enumerate(trip.plan.days[:-1], start=1):
        if not day.activities or day.activities[-1].type != HOTEL:
            yield f"day {number} does not end with a {HOTEL}"


def essential_meal_coverage(trip: PlannedTrip) -> Iterator[str]:
    """Two meals two hours apart on a day in one city; on others as many as the hours before leaving or after arriving ask for."""
    for visited in visits(trip):
        meals = _meals(visited.day)
        if visited.stays:
            yield from _meal_count(visited, meals, "in one city", at_least=2)
        hour = visited.departure() if visited.leaves else None
        if hour is not None:
            when = f"leaving at {hour:g} h"
            if hour < 9:
                yield from _meal_count(visited, meals, when, at_most=0)
            elif hour < 15:
                yield from _meal_count(visited, meals, when, at_most=1)
            else:
                yield from _meal_count(visited, meals, when, at_least=1)
        hour = visited.arrival() if visited.arrives else None
        if hour is not None:
            when = f"arriving at {hour:g} h"
            if hour < 10:
                yield from _meal_count(visited, meals, when, at_least=2)
            elif hour < 15:
                yield from _meal_count(visited, meals, when, at_least=1)
            else:
                yield from _meal_count(visited, meals, when, at_most=1)


def essential_attraction_coverage(trip: PlannedTrip) -> Iterator[str]:
    """Two attractions, or four hours for one with its ways, on a day in one city; one where one leaves after 16 or arrives before 12."""
    for visited in visits(trip):
        num = sum(1 for _ in visited.day.of(ATTRACTION))
        if visited.stays and num < 2 and _hours_for_attractions(visited.day) < _LONG_VISIT_HOURS:
            yield f"day {visited.number} has {num} attraction(s) in less than {_LONG_VISIT_HOURS:g} hours"
        leaves = visited.departure() if visited.leaves else None
        arrives = visited.arrival() if visited.arrives else None
        if not num and ((leaves is not None and leaves > 16) or (arrives is not None and arrives < 12)):
            yield f"day {visited.number} has time for an attraction and has none"


def _in_words(day: Day) -> bool:
    """Whether the accommodation is a text, not an object: it counts as stated and is compared with nothing."""
    return isinstance(day.accommodation, str) and bool(day.accommodation)


def _meals(day: Day) -> list[tuple[int, int]]:
    """Start and end of the meals that state both, by start."""
    times = (stated_minutes(meal.time_slot) for meal in day.of(MEAL))
    return sorted((start, end) for start, end in times if start is not None and end is not None)


def _meal_count(
    visited: Visited, meals: list[tuple[int, int]], when: str, *, at_least: int = 0, at_most: int | None = None
) -> Iterator[str]:
    """Too few meals, too many, or, where there is no highest number, the first two too close to each other."""
    if len(meals) < at_least or (at_most is not None and len(meals) > at_most):
        yield f"day {visited.number}, {when}, has {len(meals)} meal(s)"
    elif at_most is None and len(meals) > 1 and meals[1][0] - meals[0][1] < _BETWEEN_MEALS_MINUTES:
        yield f"day {visited.number}: less than {_BETWEEN_MEALS_MINUTES} minutes between two meals"


def _hours_for_attractions(day: Day) -> float:
    """Hours of visits and of the ways from and to them."""
    names = {activity.details.name for activity in day.of(ATTRACTION)} - {""}
    ways = (way for way in day.of(TRAVEL_CITY) if {way.details.origin, way.details.destination} & names)
    return sum(_whole_minutes(activity) for activity in (*day.of(ATTRACTION), *ways)) / 60


def _whole_minutes(activity: Activity) -> int:
    start, end = stated_minutes(activity.time_slot)
    if start is None or end is None:
        return 0
    # The benchmark subtracts hours as floating-point numbers and cuts: some lengths come out a minute shorter.
    hours = (end // 60 + end % 60 / 60.0) - (start // 60 + start % 60 / 60.0)
    return int((hours + (MINUTES_PER_DAY // 60 if hours < 0 else 0)) * 60)
