"""What a rule sees, and what a rule is: a plan, the facts of its query, the case's entries; violations come out."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from opd.envs.deepplanning.scoring.clock import stated_minutes
from opd.envs.deepplanning.scoring.entries import Entries, city, route_of
from opd.envs.deepplanning.scoring.plan import INTERCITY, Day, Plan
from opd.envs.travel.task import BenchmarkFacts


class PlannedTrip(NamedTuple):
    """One plan to judge."""

    plan: Plan
    num_days: int
    facts: BenchmarkFacts
    entries: Entries


Rule = Callable[[PlannedTrip], Iterator[str]]
"""Yields one sentence a violation; nothing: satisfied."""


class Visited(NamedTuple):
    """A day and how it lies in the route."""

    number: int
    day: Day
    leaves: bool
    """It goes on from a city of the visit, from where the plan left the travellers, not from home."""
    arrives: bool
    """It ends in a city of the visit."""
    stays: bool
    """It changes no city."""

    def departure(self) -> float | None:
        """When the first trip with a time leaves, in hours."""
        return self._hours(0)

    def arrival(self) -> float | None:
        """When the first trip with a time arrives, in hours; the first also of several, as in the benchmark."""
        return self._hours(1)

    def _hours(self, end: int) -> float | None:
        minutes = (stated_minutes(trip.time_slot)[end] for trip in self.day.of(INTERCITY))
        return next((minute / 60 for minute in minutes if minute is not None), None)


def visits(trip: PlannedTrip) -> Iterator[Visited]:
    """The plan's days in order, numbered from 1."""
    home = city(trip.facts.origin)
    here = home
    for number, day in enumerate(trip.plan.days, start=1):
        route = route_of(day.current_city)
        if route is None:
            yield Visited(number, day, leaves=False, arrives=False, stays=True)
            continue
        origin, destination = route
        yield Visited(number, day, leaves=origin == here != home, arrives=destination != home, stays=False)
        here = destination
