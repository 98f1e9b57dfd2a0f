"""Itinerary structure: a hotel every night, and as many meals and attractions as the time in a city allows."""

from collections.abc import Iterator

from opd.envs.deepplanning.scoring.clock import stated_minutes
from opd.envs.deepplanning.scoring.plan import ATTRACTION, HOTEL, MEAL, TRAVEL_CITY, Activity, Day
from opd.envs.deepplanning.scoring.trip import PlannedTrip, Visited, visits
from opd.envs.travel.entries import MINUTES_PER_DAY

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
