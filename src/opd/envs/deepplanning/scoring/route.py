"""Route consistency: as many days as asked for, from home and back, and a trip for every change of city."""

from collections.abc import Iterator

from opd.envs.deepplanning.scoring.entries import city, route_of
from opd.envs.deepplanning.scoring.plan import INTERCITY
from opd.envs.deepplanning.scoring.trip import PlannedTrip


def valid_trip_duration(trip: PlannedTrip) -> Iterator[str]:
    """The plan has the query's number of days."""
    if len(trip.plan.days) != trip.num_days:
        yield f"the plan has {len(trip.plan.days)} days, the trip {trip.num_days}"


def closed_loop_route_structure(trip: PlannedTrip) -> Iterator[str]:
    """Where the first day changes city, it leaves home; where the last one does, it ends there."""
    home = city(trip.facts.origin)
    first, last = route_of(trip.plan.days[0].current_city), route_of(trip.plan.days[-1].current_city)
    if first is not None and first[0] != home:
        yield f"the first day leaves {first[0]}, not {home}"
    if last is not None and last[1] != home:
        yield f"the last day ends in {last[1]}, not {home}"


def seamless_intercity_transfers(trip: PlannedTrip) -> Iterator[str]:
    """Each day begins where the one before ended; a change of city has a trip between stations of the two cities."""
    here = city(trip.facts.origin)
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
