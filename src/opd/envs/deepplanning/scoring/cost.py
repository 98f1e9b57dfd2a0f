"""What a plan costs by the costs that it states, and whether its total is that."""

from collections.abc import Iterator

from opd.envs.deepplanning.scoring.plan import ATTRACTION, INTERCITY, MEAL, TRAVEL_CITY, Cost, Day, amount
from opd.envs.deepplanning.scoring.trip import PlannedTrip

_TOLERANCE = 0.10
_SEATS_OF_A_TAXI = 4


def stated_cost(trip: PlannedTrip) -> float:
    """All stated costs for the whole party.

    A day's first trip (each segment of a route states the price of the whole), meals and tickets a person; ways in the
    city a taxi for four; hotels a room and night, without the last day's. A cost below 0 counts as none.
    """
    people, rooms, days = trip.facts.num_people, trip.facts.num_rooms, trip.plan.days
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
