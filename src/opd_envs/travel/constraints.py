"""Judging a plan: every commonsense constraint, and those hard ones that the task asks for, each by its name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from opd_envs.travel.database import Database
from opd_envs.travel.entries import Place, clock, minutes_of, transfer_minutes
from opd_envs.travel.itinerary import Case, Check, Stop, Verdict, cost, follow
from opd_envs.travel.plan import Plan
from opd_envs.travel.task import Trip

MIN_MEAL_MINUTES = 30
STATION_MINUTES = 30
"""Between a trip and what comes before or after it."""
MEALS_OF_A_FULL_DAY = 2


def days_complete(case: Case) -> Iterator[str]:
    """The days are 1 to the task's number, in order, each with something to do."""
    numbers = [day.day for day in case.plan.days]
    if numbers != list(range(1, case.task.num_days + 1)):
        yield f"the days are {numbers[:20]}, not 1 to {case.task.num_days}"
    for day in case.plan.days:
        if not day.activities:
            yield f"day {day.day} has no activity"


def entries_exist(case: Case) -> Iterator[str]:
    """Everything the plan names is in the database, in the city where the travellers are."""
    if not case.itinerary.stops:
        yield "the plan names nothing"
    for stop in case.itinerary.stops:
        if not stop.exists:
            yield f"{_where(stop)}: {stop.city.name} has no such {stop.activity.type}"
    for night in case.itinerary.nights:
        if night.name is not None and night.hotel is None:
            yield f"night {night.day + 1}: {night.city.name} has no hotel {night.name[:80]!r}"


def route_closed(case: Case) -> Iterator[str]:
    """From the origin through the destinations in their order and back, each trip leaving from where one is."""
    for stop in case.trips():
        if stop.trip is not None and stop.trip.from_city_id != stop.city.id:
            yield f"{_where(stop)}: does not leave from {stop.city.name}"
    visited = [case.itinerary.origin.id]
    visited += [s.trip.to_city_id for s in case.trips() if s.trip is not None and s.trip.from_city_id == s.city.id]
    wanted = [case.itinerary.origin.id, *(city.id for city in case.itinerary.destinations), case.itinerary.origin.id]
    if _without_repeats(visited) != _without_repeats(wanted):
        yield "the route is not origin, destinations in their order, origin"


def trips_on_timetable(case: Case) -> Iterator[str]:
    """Every trip runs on its day and is entered with the timetable's times."""
    yield from _nothing_to_judge(case)
    for stop in case.trips():
        trip = stop.trip
        if trip is None:
            continue
        if not trip.runs_on(stop.date.weekday()):
            yield f"{_where(stop)}: does not run on {stop.date}"
        if (stop.activity.start, stop.activity.end) != (trip.departs, trip.arrives):
            yield f"{_where(stop)}: runs from {clock(trip.departs)} to {clock(trip.arrives)}"


def times_in_order(case: Case) -> Iterator[str]:
    """Every activity ends after it begins, and none begins before the one before it has ended."""
    yield from _nothing_to_judge(case)
    for stop in case.itinerary.stops:
        if stop.activity.start >= stop.activity.end:
            yield f"{_where(stop)}: ends at {clock(stop.activity.end)}, not after it begins"
    for before, after in _same_day(case):
        if after.activity.start < before.activity.end:
            yield f"{_where(after)}: begins before {before.activity.name[:80]} has ended"


def transfers_possible(case: Case) -> Iterator[str]:
    """Between two activities of a day lies the time it takes to get from one to the other."""
    yield from _nothing_to_judge(case)
    for before, after in _same_day(case):
        gap = after.activity.start - before.activity.end
        if before.place is not None and after.place is not None:
            needed = transfer_minutes(before.place, after.place) if before.city.id == after.city.id else 0
        else:
            needed = STATION_MINUTES
        if gap < needed:
            yield f"{_where(after)}: {gap} minutes after {before.activity.name[:80]}, getting there takes {needed}"


def open_when_visited(case: Case) -> Iterator[str]:
    """Sights and restaurants are open from the visit's beginning to its end."""
    yield from _nothing_to_judge(case)
    for stop in case.places():
        place = stop.place
        if place is None:
            continue
        if stop.date.weekday() == place.closed_weekday:
            yield f"{_where(stop)}: is closed on {stop.date}"
        elif stop.activity.start < place.opens or stop.activity.end > place.closes:
            yield f"{_where(stop)}: is open from {clock(place.opens)} to {clock(place.closes)}"


def visits_long_enough(case: Case) -> Iterator[str]:
    """A sight gets the minutes that it takes, a meal half an hour."""
    yield from _nothing_to_judge(case)
    for stop in case.places():
        place = stop.place
        needed = MIN_MEAL_MINUTES if place is None or place.kind == "restaurant" else place.visit_minutes
        if stop.activity.end - stop.activity.start < needed:
            yield f"{_where(stop)}: takes at least {needed} minutes"


def hotel_every_night(case: Case) -> Iterator[str]:
    """Every night but the last day's is spent in a hotel of the city one is in; a day in one's own city needs none."""
    yield from _nothing_to_judge(case)
    *nights, last = case.itinerary.nights
    for night in nights:
        if night.hotel is None:
            yield f"night {night.day + 1}: no hotel in {night.city.name}"
    if last.name is not None:
        yield "the last day ends at home, without a hotel"


def meals_enough(case: Case) -> Iterator[str]:
    """At least one meal a day, two on a day without a trip."""
    meals = Counter(stop.day for stop in case.places() if stop.activity.type == "meal")
    travelling = {stop.day for stop in case.trips()}
    for day in range(case.task.num_days):
        needed = 1 if day in travelling else MEALS_OF_A_FULL_DAY
        if meals[day] < needed:
            yield f"day {day + 1} has {meals[day]} meal(s), needs {needed}"


def sights_enough(case: Case) -> Iterator[str]:
    """A sight on every day without a trip, and one on the whole trip."""
    sights = Counter(stop.day for stop in case.places() if stop.activity.type == "attraction")
    travelling = {stop.day for stop in case.trips()}
    if not sights:
        yield "no sight is visited"
    for day in range(case.task.num_days):
        if day not in travelling and not sights[day]:
            yield f"day {day + 1} has no sight"


def nothing_twice(case: Case) -> Iterator[str]:
    """No sight and no restaurant comes twice."""
    yield from _nothing_to_judge(case)
    visits = Counter((s.city.id, s.place.kind, s.place.name) for s in case.places() if s.place is not None)
    for (_, _, name), num in sorted(visits.items()):
        if num > 1:
            yield f"{name} comes {num} times"


def cost_stated(case: Case) -> Iterator[str]:
    """`total_cost` is what everything in the plan costs the whole party."""
    yield from _nothing_to_judge(case)
    right = cost(case.itinerary, case.task.num_people)
    if case.plan.total_cost != right:
        yield f"total_cost is {str(case.plan.total_cost)[:20]}, everything comes to {right}"


COMMONSENSE: dict[str, Check] = {
    check.__name__: check
    for check in (
        days_complete,
        entries_exist,
        route_closed,
        trips_on_timetable,
        times_in_order,
        transfers_possible,
        open_when_visited,
        visits_long_enough,
        hotel_every_night,
        meals_enough,
        sights_enough,
        nothing_twice,
        cost_stated,
    )
}


def _nothing_to_judge(case: Case) -> Iterator[str]:
    """A violation where nothing in the plan exists: an empty plan keeps to no rule."""
    if not any(stop.exists for stop in case.itinerary.stops):
        yield "the plan holds nothing that exists"


def _same_day(case: Case) -> Iterator[tuple[Stop, Stop]]:
    return ((a, b) for a, b in pairwise(case.itinerary.stops) if a.day == b.day)


def _without_repeats(cities: list[int]) -> list[int]:
    return [city for index, city in enumerate(cities) if index == 0 or city != cities[index - 1]]


def _where(stop: Stop) -> str:
    return f"day {stop.day + 1}, {clock(stop.activity.start)}, {stop.activity.name[:80]}"


def budget(case: Case) -> Iterator[str]:
    """Everything in the plan together costs no more."""
    limit = case.task.hard.budget
    total = cost(case.itinerary, case.task.num_people)
    if limit is not None and total > limit:
        yield f"everything comes to {total}, the budget is {limit}"


def transport_mode(case: Case) -> Iterator[str]:
    """Every trip is of that mode."""
    mode = case.task.hard.transport_mode
    for stop in case.trips():
        if stop.trip is not None and stop.trip.mode != mode:
            yield f"{stop.trip.number} is a {stop.trip.mode}, not a {mode}"


def hotel_min_stars(case: Case) -> Iterator[str]:
    """Every hotel has as many stars."""
    stars = case.task.hard.hotel_min_stars or 0
    yield from (f"{hotel.name} has {hotel.stars} stars, not {stars}" for hotel in _hotels(case) if hotel.stars < stars)


def hotel_feature(case: Case) -> Iterator[str]:
    """Every hotel has that feature."""
    feature = case.task.hard.hotel_feature
    yield from (f"{hotel.name} has no {feature}" for hotel in _hotels(case) if feature not in hotel.features)


def hotel_max_price(case: Case) -> Iterator[str]:
    """No room and night costs more."""
    limit = case.task.hard.hotel_max_price or 0
    yield from (f"{hotel.name} costs {hotel.price}, not {limit}" for hotel in _hotels(case) if hotel.price > limit)


def must_visit(case: Case) -> Iterator[str]:
    """Every one of these sights is visited."""
    visited = {stop.place.name for stop in case.places() if stop.place is not None and stop.place.kind == "attraction"}
    yield from (f"{name} is not visited" for name in case.task.hard.must_visit or () if name not in visited)


def cuisine(case: Case) -> Iterator[str]:
    """One meal at least is of that cuisine."""
    wanted = case.task.hard.cuisine
    if not any(
        stop.place is not None and stop.place.kind == "restaurant" and stop.place.category == wanted
        for stop in case.places()
    ):
        yield f"no meal is {wanted}"


def arrive_by(case: Case) -> Iterator[str]:
    """The first trip arrives by then."""
    limit = minutes_of(case.task.hard.arrive_by or "24:00")
    first = next(case.trips(), None)
    if first is None or first.trip is None:
        yield "there is no trip"
    elif first.day > 0 or first.trip.arrives > limit:
        yield f"{first.trip.number} arrives on day {first.day + 1} at {clock(first.trip.arrives)}, not by {clock(limit)}"


HARD: dict[str, Check] = {
    check.__name__: check
    for check in (
        budget,
        transport_mode,
        hotel_min_stars,
        hotel_feature,
        hotel_max_price,
        must_visit,
        cuisine,
        arrive_by,
    )
}


def _hotels(case: Case) -> Iterator[Place]:
    return (night.hotel for night in case.itinerary.nights if night.hotel is not None)


# Without these a plan is not one of the trip that was asked for, and meets no demand of it.
_PRECONDITIONS = ("days_complete", "entries_exist", "route_closed")
_MAX_VIOLATIONS = 20
_COMMONSENSE_SHARE = 0.5


class Judgement(NamedTuple):
    """What became of every constraint of a task."""

    commonsense: tuple[Verdict, ...]
    hard: tuple[Verdict, ...]

    @property
    def passed(self) -> bool:
        """Whether every constraint is satisfied."""
        return all(verdict.satisfied for verdict in (*self.commonsense, *self.hard))

    @property
    def score(self) -> float:
        """In [0, 1]: half for the share of commonsense constraints, half for that of the hard ones; all of the first
        where nothing is demanded. 1 exactly where everything is satisfied."""
        if not self.hard:
            return satisfied_share(self.commonsense)
        return _COMMONSENSE_SHARE * satisfied_share(self.commonsense) + (1 - _COMMONSENSE_SHARE) * satisfied_share(
            self.hard
        )


def satisfied_share(verdicts: Iterable[Verdict]) -> float:
    """Share of the verdicts that are satisfied."""
    every = [verdict.satisfied for verdict in verdicts]
    return sum(every) / len(every)


def judge(plan: Plan, task: Trip, database: Database) -> Judgement:
    """Judges a plan in the database of its episode.

    Raises:
        KeyError: the task names a city that the database does not have.
    """
    case = Case(task, plan, follow(plan, task, database))
    commonsense = tuple(_verdict(name, check, case) for name, check in COMMONSENSE.items())
    unmet = [v.name for v in commonsense if v.name in _PRECONDITIONS and not v.satisfied]
    asked = [name for name, _ in task.hard.asked()]
    if unmet:
        hard = tuple(Verdict(name, (f"not looked at, since {unmet[0]} is violated",)) for name in asked)
    else:
        hard = tuple(_verdict(name, HARD[name], case) for name in asked)
    return Judgement(commonsense, hard)


def no_plan(task: Trip, reason: str) -> Judgement:
    """The judgement of an answer that holds no plan: everything is violated."""
    return Judgement(
        tuple(Verdict(name, (reason,)) for name in COMMONSENSE),
        tuple(Verdict(name, (reason,)) for name, _ in task.hard.asked()),
    )


def _verdict(name: str, check: Check, case: Case) -> Verdict:
    violations = []
    for violation in check(case):
        violations.append(violation)
        if len(violations) == _MAX_VIOLATIONS:
            break
    return Verdict(name, tuple(violations))
