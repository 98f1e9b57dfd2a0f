"""Time feasibility, business hours and durations: when things happen, and for how long."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from opd_envs.deepplanning.scoring.plan import (
    ATTRACTION,
    BUFFER,
    HOTEL,
    INTERCITY,
    MEAL,
    Activity,
    Slot,
    amount,
    minute_of,
    within,
)
from opd_envs.deepplanning.scoring.trip import PlannedTrip
from opd_envs.travel.entries import MINUTES_PER_DAY

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


def no_time_overlaps(trip: PlannedTrip) -> Iterator[str]:
    """No activity of a day begins before the one that begins before it has ended."""
    for number, day in enumerate(trip.plan.days, start=1):
        slots = sorted((slot for activity in day.activities if (slot := activity.slot)), key=lambda slot: slot.start)
        for before, after in pairwise(slots):
            if after.start < before.start + before.length:
                yield f"day {number}: two activities at {after.start // 60:02}:{after.start % 60:02}"


def reasonable_transfer_time(trip: PlannedTrip) -> Iterator[str]:
    """Between two places of a day lies what the way takes, five minutes or the next tens aside; buffers do not count."""
    for number, day in enumerate(trip.plan.days, start=1):
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
            if minutes is None:  # the benchmark skips what it cannot look up
                continue
            least = min(max(0.0, minutes - _TOLERANCE_MINUTES), minutes // _ROUNDED_TO_MINUTES * _ROUNDED_TO_MINUTES)
            most = max(minutes + _TOLERANCE_MINUTES, math.ceil(minutes / _ROUNDED_TO_MINUTES) * _ROUNDED_TO_MINUTES)
            if not least <= gap <= most:
                yield f"day {number}: {gap} minutes from {origin} to {destination}, the way takes {minutes:g}"


def attraction_visit_within_opening_hours(trip: PlannedTrip) -> Iterator[str]:
    """Attractions are visited while they are open; without hours or a time slot nothing is known, and that is a fault."""
    yield from _no_attractions(trip)
    for visit, row in _known(trip, ATTRACTION):
        opens, closes = row["opening_time"].strip(), row["closing_time"].strip()
        if opens in _ALL_DAY and closes in _ALL_DAY:
            continue
        hours, slot = (minute_of(opens), minute_of(closes)), visit.slot
        if slot is None or hours[0] is None or hours[1] is None or not within(slot, hours[0], hours[1]):
            yield f"{visit.details.name} is visited {visit.time_slot}, it is open {opens}-{closes}"


def dining_within_service_hours(trip: PlannedTrip) -> Iterator[str]:
    """Meals are taken while the restaurant is open; one without hours is always open."""
    if not trip.entries.restaurants:
        yield "the case has no restaurants"
    for meal, row in _known(trip, MEAL):
        opens, closes = minute_of(row["opening_time"]), minute_of(row["closing_time"])
        slot = meal.slot
        if slot is None or (opens is not None and closes is not None and not within(slot, opens, closes)):
            yield f"{meal.details.name} at {meal.time_slot}, it is open {row['opening_time']}-{row['closing_time']}"


def avoidance_of_closure_days(trip: PlannedTrip) -> Iterator[str]:
    """No attraction is visited on a weekday on which it is closed; not looked at where the query has no weekday."""
    yield from _no_attractions(trip)
    first = trip.task.depart_weekday
    if not first:
        return
    for index, day in enumerate(trip.plan.days):
        weekday = (first + index - 1) % 7 + 1
        for visit in day.of(ATTRACTION):
            row = trip.entries.attractions.get(visit.details.name, {"closing_dates": ""})
            closed = {_WEEKDAYS.get(name.strip().lower()) for name in row["closing_dates"].split(",")}
            if weekday in closed:
                yield f"{visit.details.name} is closed on day {index + 1}: {row['closing_dates']}"


def reasonable_duration_at_attractions(trip: PlannedTrip) -> Iterator[str]:
    """A visit takes between the shortest and the longest time that the database gives."""
    yield from _no_attractions(trip)
    for visit, row in _known(trip, ATTRACTION):
        shortest, longest, slot = amount(row["min_visit_hours"]), amount(row["max_visit_hours"]), visit.slot
        if slot is None or shortest is None or longest is None or not shortest <= slot.length / 60 <= longest:
            yield f"{visit.details.name} is visited {visit.time_slot}, not {shortest} to {longest} hours"


def reasonable_meal_duration(trip: PlannedTrip) -> Iterator[str]:
    """A meal with a name takes 30 to 150 minutes."""
    shortest, longest = _MEAL_MINUTES
    for meal in trip.plan.of(MEAL):
        slot = meal.slot
        if meal.details.name and (slot is None or not shortest <= slot.length <= longest):
            yield f"{meal.details.name} takes {meal.time_slot}, not {shortest} to {longest} minutes"


def _gap(before: Slot, after: Slot, buffers: Sequence[Slot]) -> int | None:
    """Minutes from the end of one stop to the start of the next without buffers; None where they overlap."""
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
    """Where an activity is: a trip is left at its destination and reached at its origin."""
    details = activity.details
    if activity.type == INTERCITY:
        return (details.destination if left else details.origin) or activity.type
    return details.name or activity.type


def _known(trip: PlannedTrip, activity_type: str) -> Iterator[tuple[Activity, dict[str, str]]]:
    """Activities whose entry is in the database; the others are the sandbox's to refuse."""
    table = trip.entries.attractions if activity_type == ATTRACTION else trip.entries.restaurants
    for activity in trip.plan.of(activity_type):
        if activity.details.name in table:
            yield activity, table[activity.details.name]


def _no_attractions(trip: PlannedTrip) -> Iterator[str]:
    if not trip.entries.attractions:
        yield "the case has no attractions"
