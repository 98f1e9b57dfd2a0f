"""Hard constraints: what this traveller demands. `HARD` has a check for every field of `HardConstraints`, by its name."""

from collections.abc import Iterator

from opd.envs.travel.case import Case, Check
from opd.envs.travel.entries import Place, clock, minutes_of
from opd.envs.travel.itinerary import cost


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
