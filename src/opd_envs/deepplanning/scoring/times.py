"""Rules of the benchmark on time feasibility, business hours and durations; each returns whether it holds."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from opd_envs.deepplanning.scoring.plan import (
    ATTRACTION,
    BUFFER,
    HOTEL,
    INTERCITY,
    MEAL,
    MINUTES_PER_DAY,
    Activity,
    Slot,
    amount,
    minute_of,
    within,
)
from opd_envs.deepplanning.scoring.trip import PlannedTrip, Row

_PLACES = (HOTEL, ATTRACTION, MEAL, INTERCITY)
_TOLERANCE_MINUTES = 5
_ROUNDED_TO_MINUTES = 10
_MEAL_MINUTES = (30, 150)
_ALL_DAY = ("全天开放", "Open 24 Hours")
_WEEKDAYS = {
    name: number
    for names in (("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"),
                  ("周一", "周二", "周三", "周四", "周五", "周六", "周日"))
    for number, name in enumerate(names, start=1)
}  # fmt: skip


def no_time_overlaps(trip: PlannedTrip) -> bool:
    """Check that no activity of a day begins before the end of the activity before."""
    days = (
        sorted((slot for activity in day.activities if (slot := activity.slot)), key=lambda slot: slot.start)
        for day in trip.plan.days
    )
    return all(a.start + a.length <= b.start for slots in days for a, b in pairwise(slots))


def reasonable_transfer_time(trip: PlannedTrip) -> bool:
    """Check that two places of a day have the way's time between them, five minutes or the next tens aside."""
    for day in trip.plan.days:
        stops = [
            (slot, activity) for activity in day.activities if activity.type in _PLACES and (slot := activity.slot)
        ]
        buffers = [slot for activity in day.of(BUFFER) if (slot := activity.slot)]
        for (before, left), (after, reached) in pairwise(stops):
            gap = _gap(before, after, buffers)
            origin, destination = _place(left, left=True), _place(reached, left=False)
            if gap is None or origin == destination:
                continue
            minutes = trip.entries.minutes(origin, destination)
            if minutes is None:  # the benchmark skips an unknown way
                continue
            least = min(max(0.0, minutes - _TOLERANCE_MINUTES), minutes // _ROUNDED_TO_MINUTES * _ROUNDED_TO_MINUTES)
            most = max(minutes + _TOLERANCE_MINUTES, math.ceil(minutes / _ROUNDED_TO_MINUTES) * _ROUNDED_TO_MINUTES)
            if not least <= gap <= most:
                return False
    return True


def attraction_visit_within_opening_hours(trip: PlannedTrip) -> bool:
    """Check that attractions are open when visited; unknown hours or no time slot are a fault."""

    def is_open(visit: Activity, row: Row) -> bool:
        hours = (row["opening_time"].strip(), row["closing_time"].strip())
        if all(hour in _ALL_DAY for hour in hours):
            return True
        opens, closes = map(minute_of, hours)
        return visit.slot is not None and opens is not None and closes is not None and within(visit.slot, opens, closes)

    return _all(trip, ATTRACTION, is_open)


def dining_within_service_hours(trip: PlannedTrip) -> bool:
    """Check that restaurants are open at the meal; a restaurant without hours is always open."""

    def is_open(meal: Activity, row: Row) -> bool:
        opens, closes = minute_of(row["opening_time"]), minute_of(row["closing_time"])
        return meal.slot is not None and (opens is None or closes is None or within(meal.slot, opens, closes))

    return _all(trip, MEAL, is_open)


def avoidance_of_closure_days(trip: PlannedTrip) -> bool:
    """Check that no attraction is visited on its closing day; without a weekday in the query the rule holds."""
    first, attractions = trip.task.depart_weekday, trip.entries.attractions
    if not attractions:
        return False
    for index, day in enumerate(trip.plan.days if first else ()):
        weekday = ((first or 0) + index - 1) % 7 + 1
        for visit in day.of(ATTRACTION):
            dates = attractions.get(visit.details.name, {"closing_dates": ""})["closing_dates"]
            if weekday in {_WEEKDAYS.get(name.strip().lower()) for name in dates.split(",")}:
                return False
    return True


def reasonable_duration_at_attractions(trip: PlannedTrip) -> bool:
    """Check that a visit takes between the database's shortest and longest time."""

    def fits(visit: Activity, row: Row) -> bool:
        shortest, longest, slot = amount(row["min_visit_hours"]), amount(row["max_visit_hours"]), visit.slot
        if slot is None or shortest is None or longest is None:
            return False
        return shortest <= slot.length / 60 <= longest

    return _all(trip, ATTRACTION, fits)


def reasonable_meal_duration(trip: PlannedTrip) -> bool:
    """Check that a meal with a name takes 30 to 150 minutes."""
    shortest, longest = _MEAL_MINUTES
    slots = (meal.slot for meal in trip.plan.of(MEAL) if meal.details.name)
    return all(slot is not None and shortest <= slot.length <= longest for slot in slots)


def _gap(before: Slot, after: Slot, buffers: Sequence[Slot]) -> int | None:
    """Return the minutes from the end of one stop to the start of the next without buffers; None where they overlap."""
    end, start = before.start + before.length, after.start
    if end - start > MINUTES_PER_DAY // 2:  # the next stop is after midnight
        start += MINUTES_PER_DAY
    gap = start - end
    if gap < 0:
        return None
    for buffer in buffers:
        first, last = buffer.start, buffer.start + buffer.length
        if first < end:
            first, last = first + MINUTES_PER_DAY, last + MINUTES_PER_DAY
        if end <= first and last <= start:
            gap -= buffer.length
    return gap


def _place(activity: Activity, *, left: bool) -> str:
    """Return the place of an activity: travellers leave a trip at its destination and reach it at its origin."""
    details = activity.details
    if activity.type == INTERCITY:
        return (details.destination if left else details.origin) or activity.type
    return details.name or activity.type


def _all(trip: PlannedTrip, activity_type: str, holds: Callable[[Activity, Row], bool]) -> bool:
    """Check the activities with an entry in the database; the sandbox's rules refuse the others."""
    table = trip.entries.attractions if activity_type == ATTRACTION else trip.entries.restaurants
    found = ((activity, table.get(activity.details.name)) for activity in trip.plan.of(activity_type))
    return bool(table) and all(holds(activity, row) for activity, row in found if row is not None)
