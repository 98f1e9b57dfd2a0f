"""Activity diversity: nothing comes twice."""

from collections import Counter
from collections.abc import Iterator

from opd.envs.deepplanning.scoring.plan import ATTRACTION, MEAL
from opd.envs.deepplanning.scoring.trip import PlannedTrip


def diverse_meal_options(trip: PlannedTrip) -> Iterator[str]:
    """No restaurant comes twice."""
    return _repeats(trip, MEAL)


def diverse_attraction_options(trip: PlannedTrip) -> Iterator[str]:
    """No attraction comes twice."""
    return _repeats(trip, ATTRACTION)


def _repeats(trip: PlannedTrip, activity_type: str) -> Iterator[str]:
    names = Counter(activity.details.name for activity in trip.plan.of(activity_type))
    yield from (f"{name} comes {num} times" for name, num in names.items() if name and num > 1)
