"""Rules of the benchmark on cost, diversity, route, sandbox and structure of a plan; each returns whether it holds."""

from collections.abc import Iterable, Mapping

from opd_envs.deepplanning.scoring.plan import (
    ATTRACTION,
    HOTEL,
    INTERCITY,
    MEAL,
    MINUTES_PER_DAY,
    TRAVEL_CITY,
    Activity,
    Cost,
    Day,
    amount,
    stated_minutes,
)
from opd_envs.deepplanning.scoring.trip import PlannedTrip, Row, city, route_of, visits

_TOLERANCE = 0.10
_SEATS_OF_A_TAXI = 4
_NO_HOTEL = "-"
_BETWEEN_MEALS_MINUTES = 120
_LONG_VISIT_HOURS = 4.0


def stated_cost(trip: PlannedTrip) -> float:
    """Return all stated costs for the whole party.

    Persons pay meals, tickets and a day's first trip, since each segment of a route states the price of the whole. Four
    share a taxi of ways in the city. Rooms pay hotels of all nights but the last day's. A cost below 0 counts as none.
    """
    people, rooms, days = trip.task.num_people, trip.task.num_rooms, trip.plan.days
    taxis = max(1, -(-people // _SEATS_OF_A_TAXI))
    each = sum(_sum(day, MEAL) + _sum(day, ATTRACTION) + _fare(day) for day in days)
    stays = sum(_cost(day.stay.price) for day in days[:-1] if day.stay is not None)
    return each * people + stays * rooms + sum(_sum(day, TRAVEL_CITY) for day in days) * taxis


def cost_calculation_correctness(trip: PlannedTrip) -> bool:
    """Check that the stated total is within a tenth of itself from the sum of the stated costs."""
    total, spent = trip.plan.total, stated_cost(trip)
    if total is None or total < 0:
        return False
    return abs(spent - total) / total <= _TOLERANCE if total else spent == 0


def _cost(stated: Cost) -> float:
    return max(0.0, amount(stated) or 0.0)


def _sum(day: Day, activity_type: str) -> float:
    return sum(_cost(activity.details.cost) for activity in day.of(activity_type))


def _fare(day: Day) -> float:
    """Return the first cost that is a number; 0 for a trip without the field, as the benchmark reads it."""
    fares = (amount(ride.details.cost if "cost" in ride.details.model_fields_set else 0) for ride in day.of(INTERCITY))
    return max(0.0, next((fare for fare in fares if fare is not None), 0.0))


def diverse_meal_options(trip: PlannedTrip) -> bool:
    """Check that no restaurant comes twice."""
    return _no_repeats(trip, MEAL)


def diverse_attraction_options(trip: PlannedTrip) -> bool:
    """Check that no attraction comes twice."""
    return _no_repeats(trip, ATTRACTION)


def _no_repeats(trip: PlannedTrip, activity_type: str) -> bool:
    names = [activity.details.name for activity in trip.plan.of(activity_type) if activity.details.name]
    return len(set(names)) == len(names)


def valid_trip_duration(trip: PlannedTrip) -> bool:
    """Check that the plan has the query's number of days."""
    return len(trip.plan.days) == trip.task.num_days


def closed_loop_route_structure(trip: PlannedTrip) -> bool:
    """Check that a first day that changes city leaves home, and that a last day that does ends there."""
    home = city(trip.task.origin)
    first, last = route_of(trip.plan.days[0].current_city), route_of(trip.plan.days[-1].current_city)
    return (first is None or first[0] == home) and (last is None or last[1] == home)


def seamless_intercity_transfers(trip: PlannedTrip) -> bool:
    """Check that each day begins in the city of the last one's end, and that a trip joins two cities' stations."""
    here = city(trip.task.origin)
    for day in trip.plan.days:
        route = route_of(day.current_city)
        if route is None:
            if city(day.current_city) != here:
                return False
            continue
        stations = [(ride.details.origin, ride.details.destination) for ride in day.of(INTERCITY)]
        trips = [(trip.entries.city_of(a), trip.entries.city_of(b)) for a, b in stations if a and b]
        if route[0] != here or route not in trips:
            return False
        here = route[1]
    return True


def validated_accommodation(trip: PlannedTrip) -> bool:
    """Check that each night's hotel exists at the stated price, and hotels of activities before the last day exist."""
    hotels, days = trip.entries.hotels, trip.plan.days
    stays = (day.stay for day in days if not (day is days[-1] and day.stay and day.stay.name == _NO_HOTEL))
    gone_to = (activity.details.name for day in days[:-1] for activity in day.of(HOTEL))
    return (
        bool(hotels)
        and all(_is_listed(stay.name, stay.price, hotels, "price") for stay in stays if stay is not None and stay.name)
        and all(name in hotels for name in gone_to if name)
    )


def validated_attractions(trip: PlannedTrip) -> bool:
    """Check that each attraction exists and that its ticket costs the stated amount."""
    return _are_listed(trip.plan.of(ATTRACTION), trip.entries.attractions, "ticket_price")


def validated_meals(trip: PlannedTrip) -> bool:
    """Check that each restaurant exists and costs a person the stated amount."""
    return _are_listed(trip.plan.of(MEAL), trip.entries.restaurants, "price_per_person")


def validated_transportation(trip: PlannedTrip) -> bool:
    """Check that each trip has number, stations and a cost, which is a price of its number in a timetable."""
    for ride in trip.plan.of(INTERCITY):
        stated = ride.details
        prices = trip.entries.prices.get(stated.number)
        if not (stated.number and stated.origin and stated.destination) or stated.cost in (None, "") or prices is None:
            return False
        cost = amount(stated.cost)
        listed = [round(price) for price in map(amount, prices) if price is not None]
        if cost is not None and listed and round(cost) not in listed:
            return False
    return True


def _are_listed(activities: Iterable[Activity], table: Mapping[str, Row], column: str) -> bool:
    return bool(table) and all(_is_listed(a.details.name, a.details.cost, table, column) for a in activities)


def _is_listed(name: str, cost: Cost, table: Mapping[str, Row], column: str) -> bool:
    """Compare an entry's price in whole units; only a number is a price."""
    if name not in table:
        return False
    price = amount(table[name][column])
    return price is None or (isinstance(cost, int | float) and round(cost) == round(price))


def traceable_accommodation(trip: PlannedTrip) -> bool:
    """Check that every day but the last states its hotel and goes to one, and that the last states none."""
    *nights, last = trip.plan.days
    goes = all(any(day.of(HOTEL)) and (day.stay is not None or _in_words(day)) for day in nights)
    return goes and not _in_words(last) and (last.stay is None or last.stay.name in ("", _NO_HOTEL))


def ends_with_accommodation(trip: PlannedTrip) -> bool:
    """Check that the last activity of every day but the last is of type hotel."""
    return all(day.activities and day.activities[-1].type == HOTEL for day in trip.plan.days[:-1])


def essential_meal_coverage(trip: PlannedTrip) -> bool:
    """Check for two meals two hours apart on a day in one city; a trip's hour decides about other days."""
    for visited in visits(trip):
        bounds: list[tuple[int, int | None]] = [(2, None)] if visited.stays else []
        if (hour := visited.leaves_at) is not None:
            bounds.append((0, 0) if hour < 9 else (0, 1) if hour < 15 else (1, None))
        if (hour := visited.arrives_at) is not None:
            bounds.append((2, None) if hour < 10 else (1, None) if hour < 15 else (0, 1))
        meals = _meals(visited.day)
        if not all(_enough(meals, at_least, at_most) for at_least, at_most in bounds):
            return False
    return True


def _enough(meals: list[tuple[int, int]], at_least: int, at_most: int | None) -> bool:
    """Compare the number of meals with its bounds; without a highest number the first two are two hours apart."""
    if at_most is not None:
        return at_least <= len(meals) <= at_most
    apart = len(meals) < 2 or meals[1][0] - meals[0][1] >= _BETWEEN_MEALS_MINUTES
    return at_least <= len(meals) and apart


def essential_attraction_coverage(trip: PlannedTrip) -> bool:
    """Check for two attractions, or four hours of one, on a day in one city; for one if a trip leaves the time for it."""
    for visited in visits(trip):
        num = sum(1 for _ in visited.day.of(ATTRACTION))
        arrives = 24 if visited.arrives_at is None else visited.arrives_at
        has_time = (visited.leaves_at or 0) > 16 or arrives < 12
        too_short = visited.stays and num < 2 and _hours_for_attractions(visited.day) < _LONG_VISIT_HOURS
        if too_short or (not num and has_time):
            return False
    return True


def _in_words(day: Day) -> bool:
    """Return whether the accommodation is a text: it counts as stated and is compared with nothing."""
    return isinstance(day.accommodation, str) and bool(day.accommodation)


def _meals(day: Day) -> list[tuple[int, int]]:
    """Return start and end of the meals that state both, by start."""
    times = (stated_minutes(meal.time_slot) for meal in day.of(MEAL))
    return sorted((start, end) for start, end in times if start is not None and end is not None)


def _hours_for_attractions(day: Day) -> float:
    """Return the hours of visits and of the ways from and to them."""
    names = {activity.details.name for activity in day.of(ATTRACTION)} - {""}
    ways = (way for way in day.of(TRAVEL_CITY) if {way.details.origin, way.details.destination} & names)
    return sum(_whole_minutes(activity) for activity in (*day.of(ATTRACTION), *ways)) / 60


def _whole_minutes(activity: Activity) -> int:
    start, end = stated_minutes(activity.time_slot)
    if start is None or end is None:
        return 0
    # The benchmark subtracts hours as floating-point numbers and cuts: some lengths come out a minute shorter.
    hours = (end // 60 + end % 60 / 60.0) - (start // 60 + start % 60 / 60.0)
    return int((hours + (MINUTES_PER_DAY // 60 if hours < 0 else 0)) * 60)
