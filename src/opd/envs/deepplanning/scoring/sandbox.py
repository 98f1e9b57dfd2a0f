"""Sandbox compliance: everything that a plan names is in the database, at the price that it has there."""

from collections.abc import Iterable, Iterator, Mapping

from opd.envs.deepplanning.scoring.entries import Row
from opd.envs.deepplanning.scoring.plan import ATTRACTION, HOTEL, INTERCITY, MEAL, Activity, Cost, amount
from opd.envs.deepplanning.scoring.trip import PlannedTrip

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
