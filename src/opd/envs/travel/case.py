"""What a constraint is: a named pure function from one looked-up plan to the ways in which it is violated."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from opd.envs.travel.itinerary import Itinerary, Stop
from opd.envs.travel.plan import Plan
from opd.envs.travel.task import Trip


class Case(NamedTuple):
    """One plan to judge."""

    task: Trip
    plan: Plan
    itinerary: Itinerary

    def places(self) -> Iterator[Stop]:
        """The stops at sights and restaurants that exist."""
        return (stop for stop in self.itinerary.stops if stop.place is not None)

    def trips(self) -> Iterator[Stop]:
        """The stops that are trips that exist."""
        return (stop for stop in self.itinerary.stops if stop.trip is not None)


Check = Callable[[Case], Iterator[str]]
"""Yields one sentence a violation; nothing: satisfied."""


class Verdict(NamedTuple):
    """What became of one constraint."""

    name: str
    violations: tuple[str, ...]

    @property
    def satisfied(self) -> bool:
        """Whether there is no violation."""
        return not self.violations
