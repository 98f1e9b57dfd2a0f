"""The thresholds of the benchmark's rules, each side of each: worked out by hand from its conditions."""

import sqlite3

import pytest

from opd_envs.deepplanning.database import CREATE, Case, insert_statement
from opd_envs.deepplanning.layout import TABLES
from opd_envs.deepplanning.scoring import rules, times
from opd_envs.deepplanning.scoring.plan import Plan
from opd_envs.deepplanning.scoring.trip import Entries, PlannedTrip
from opd_envs.deepplanning.task import BenchmarkTrip

RIDE = "travel_intercity_public"
OUT, BACK, STAY = "from Home to Goal", "from Goal to Home", "Goal"


def entries(**tables) -> Entries:
    """A case of the given rows, in the importer's own tables."""
    connection = sqlite3.connect(":memory:")
    for statement in CREATE:
        connection.execute(statement)
    for table in TABLES:
        for line, row in enumerate(tables.get(table.name, ()), start=2):
            connection.execute(insert_statement(table), ("1", line, *(row.get(name, "") for name in table.columns)))
    return Entries(Case(connection, "en", "1"))


def act(what: str, slot: str = "", **details):
    return {"type": what, "time_slot": slot, "details": details}


def day(city: str = STAY, *activities, **more):
    return {"current_city": city, "activities": list(activities), **more}


def holds(rule, *days, found: Entries | None = None, total: object = None, **facts) -> bool:
    plan = Plan.model_validate({"daily_plans": days, "budget_summary": {"total_estimated_budget": total}})
    task = BenchmarkTrip(origin="Home", num_days=len(days), **facts)
    return not list(rule(PlannedTrip(plan, task, found or entries())))


LUNCH, DINNER = act("meal", "11:00-12:00"), act("meal", "17:00-18:00")


@pytest.mark.parametrize(
    ("slot", "num_meals", "expected"),
    [
        ("07:00-09:59", 1, False), ("07:00-09:59", 2, True),
        ("07:00-10:00", 0, False), ("07:00-10:00", 1, True), ("07:00-14:59", 2, True), ("07:00-14:59", 0, False),
        ("07:00-15:00", 0, True), ("07:00-15:00", 1, True), ("07:00-15:00", 2, False),
    ],
)  # fmt: skip
def test_meals_after_an_arrival(slot, num_meals, expected):
    arrives = day(OUT, act(RIDE, slot), *(LUNCH, DINNER)[:num_meals])
    assert holds(rules.essential_meal_coverage, arrives) is expected


@pytest.mark.parametrize(
    ("slot", "num_meals", "expected"),
    [
        ("08:59-23:00", 0, True), ("08:59-23:00", 1, False),
        ("09:00-23:00", 1, True), ("09:00-23:00", 2, False), ("14:59-23:00", 0, True),
        ("15:00-23:00", 0, False), ("15:00-23:00", 1, True), ("15:00-23:00", 2, True),
    ],
)  # fmt: skip
def test_meals_before_a_departure(slot, num_meals, expected):
    leaves = day(BACK, act(RIDE, slot), *(LUNCH, DINNER)[:num_meals])
    full = day(STAY, LUNCH, DINNER)
    assert holds(rules.essential_meal_coverage, day(OUT), full, leaves) is expected


def test_a_day_in_one_city_has_two_meals_with_times():
    assert not holds(rules.essential_meal_coverage, day(STAY, LUNCH))
    assert not holds(rules.essential_meal_coverage, day(STAY, LUNCH, act("meal", "at noon")))
    assert holds(rules.essential_meal_coverage, day(OUT), day(BACK))  # trips without a time say nothing


@pytest.mark.parametrize(
    ("activities", "expected"),
    [
        ((act("attraction", name="A"), act("attraction", name="B")), True),
        ((act("attraction", "09:00-13:00", name="A"),), True),
        ((act("attraction", "09:00-12:59", name="A"),), False),
        ((act("attraction", "09:00-12:00", name="A"), act("travel_city", "12:00-13:00", **{"from": "A", "to": "x"})), True),
        ((act("attraction", "09:00-12:00", name="A"), act("travel_city", "12:00-13:00", **{"from": "y", "to": "x"})), False),
    ],
)  # fmt: skip
def test_a_day_in_one_city_has_two_attractions_or_four_hours_of_one(activities, expected):
    assert holds(rules.essential_attraction_coverage, day(STAY, *activities)) is expected


@pytest.mark.parametrize(
    ("city", "slot", "expected"),
    [
        (OUT, "07:00-11:59", False),
        (OUT, "07:00-12:00", True),
        (BACK, "16:00-18:00", True),
        (BACK, "16:01-18:00", False),
    ],
)
def test_a_day_with_a_trip_leaves_time_for_an_attraction_or_has_one(city, slot, expected):
    before = () if city == OUT else (day(OUT),)
    assert holds(rules.essential_attraction_coverage, *before, day(city, act(RIDE, slot))) is expected
    visited = day(city, act(RIDE, slot), act("attraction"))
    assert holds(rules.essential_attraction_coverage, *before, visited)


INN = {"accommodation": {"name": "Inn", "price_per_night": 1}}


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (day(STAY, act("hotel"), **INN), day(), True),
        (day(STAY, act("hotel"), **INN), day(accommodation={"name": "-"}), True),
        (day(STAY, act("hotel"), **INN), day(accommodation="-"), False),
        (day(STAY, act("hotel"), **INN), day(**INN), False),
        (day(STAY, act("hotel")), day(), False),
        (day(STAY, act("hotel"), accommodation={}), day(), False),
        (day(STAY, **INN), day(), False),
    ],
)
def test_every_night_but_the_last_is_stated_and_gone_to(first, last, expected):
    assert holds(rules.traceable_accommodation, first, last) is expected


PLACES = [{"poi_name": name, "latitude": f"{n}.0", "longitude": "1.0"} for n, name in enumerate("ABS")]


def way(minutes: str) -> Entries:
    return entries(
        locations=PLACES, distances=[{"origin": "0.0,1.0", "destination": "1.0,1.0", "duration_minutes": minutes}]
    )


@pytest.mark.parametrize(
    ("minutes", "gap", "expected"),
    [
        ("23", 17, False), ("23", 18, True), ("23", 30, True), ("23", 31, False),  # 5 less, the next ten more
        ("28", 19, False), ("28", 20, True), ("28", 33, True), ("28", 34, False),  # the ten before, 5 more
        ("3", 0, True), ("3", 10, True), ("3", 11, False), ("x", 300, True),  # a way that cannot be looked up is skipped
    ],
)  # fmt: skip
def test_a_transfer_takes_what_the_way_takes(minutes, gap, expected):
    stops = (act("meal", "10:00-11:00", name="A"), act("attraction", f"11:{gap:02}-12:30", name="B"))
    if gap >= 60:
        stops = (stops[0], act("attraction", "16:00-17:00", name="B"))
    assert holds(times.reasonable_transfer_time, day(STAY, *stops), found=way(minutes)) is expected


def test_a_trip_is_reached_at_its_origin_and_left_at_its_destination():
    def rides(origin, destination):
        ride = act(RIDE, "10:00-11:00", **{"from": origin, "to": destination})
        return day(STAY, ride, act("meal", "11:50-12:50", name="B"))

    assert not holds(times.reasonable_transfer_time, rides("S", "A"), found=way("20"))
    assert holds(times.reasonable_transfer_time, rides("A", "S"), found=way("20"))  # no row in the matrix


@pytest.mark.parametrize(
    ("second", "expected"), [("12:00-13:00", True), ("11:59-13:00", False), ("noon", True), ("23:00-01:00", True)]
)
def test_activities_do_not_overlap(second, expected):
    assert holds(times.no_time_overlaps, day(STAY, act("meal", second), act("buffer", "10:00-12:00"))) is expected


@pytest.mark.parametrize(
    ("slot", "opens", "closes", "expected"),
    [
        ("09:00-17:00", "09:00", "17:00", True), ("08:59-17:00", "09:00", "17:00", False), ("09:00-17:01", "09:00", "17:00", False),
        ("23:00-24:00", "09:00", "24:00", True), ("22:00-01:00", "18:00", "02:00", True), ("22:00-03:00", "18:00", "02:00", False),
        ("01:00-02:00", "18:00", "02:00", True), ("12:00-13:00", "18:00", "02:00", False), ("22:00-01:00", "09:00", "23:00", False),
    ],
)  # fmt: skip
def test_places_are_visited_while_they_are_open(slot, opens, closes, expected):
    hours = {"opening_time": opens, "closing_time": closes}
    found = entries(attractions=[{"attraction_name": "A", **hours}], restaurants=[{"restaurant_name": "A", **hours}])
    assert (
        holds(times.attraction_visit_within_opening_hours, day(STAY, act("attraction", slot, name="A")), found=found)
        is expected
    )
    assert holds(times.dining_within_service_hours, day(STAY, act("meal", slot, name="A")), found=found) is expected


def test_hours_that_are_not_known_close_an_attraction_and_no_restaurant():
    found = entries(
        attractions=[{"attraction_name": "A"}, {"attraction_name": "B", "opening_time": "Open 24 Hours", "closing_time": "Open 24 Hours"}],
        restaurants=[{"restaurant_name": "A"}],
    )  # fmt: skip
    rule = times.attraction_visit_within_opening_hours
    assert not holds(rule, day(STAY, act("attraction", "09:00-10:00", name="A")), found=found)
    assert holds(rule, day(STAY, act("attraction", "when we like", name="B")), found=found)
    assert holds(times.dining_within_service_hours, day(STAY, act("meal", "09:00-10:00", name="A")), found=found)
    assert not holds(times.dining_within_service_hours, day(STAY, act("meal", "noon", name="A")), found=found)


@pytest.mark.parametrize(
    ("closed", "weekday", "expected"),
    [("Monday", 7, False), ("monday, Friday", 7, False), ("周一,周日", 7, False), ("Monday", 1, True), ("Mondays", 7, True), ("Monday", None, True)],
)  # fmt: skip
def test_no_attraction_is_visited_on_a_closing_day(closed, weekday, expected):
    found = entries(attractions=[{"attraction_name": "A", "closing_dates": closed}])
    days = (day(), day(STAY, act("attraction", name="A")))  # the second day: Monday where the first is Sunday
    assert holds(times.avoidance_of_closure_days, *days, found=found, depart_weekday=weekday) is expected


@pytest.mark.parametrize(
    ("slot", "expected"),
    [
        ("10:00-10:59", False),
        ("10:00-11:00", True),
        ("10:00-12:30", True),
        ("10:00-12:31", False),
        ("23:30-00:45", True),
        ("", False),
    ],
)
def test_a_visit_takes_what_the_database_gives_it(slot, expected):
    found = entries(attractions=[{"attraction_name": "A", "min_visit_hours": "1", "max_visit_hours": "2.5"}])
    visit = day(STAY, act("attraction", slot, name="A"))
    assert holds(times.reasonable_duration_at_attractions, visit, found=found) is expected


@pytest.mark.parametrize(
    ("slot", "expected"),
    [
        ("12:00-12:29", False),
        ("12:00-12:30", True),
        ("12:00-14:30", True),
        ("12:00-14:31", False),
        ("23:30-00:30", True),
        ("", False),
    ],
)
def test_a_meal_takes_half_an_hour_to_two_and_a_half(slot, expected):
    assert holds(times.reasonable_meal_duration, day(STAY, act("meal", slot, name="A"))) is expected
    assert holds(times.reasonable_meal_duration, day(STAY, act("meal", slot)))  # without a name it is not looked at


PARTY = {"num_people": 5, "num_rooms": 2}
COSTS = (
    day(OUT, act(RIDE, cost=None), act(RIDE, cost=100), act(RIDE, cost=999), act("travel_city", cost="30"), **INN),
    day(STAY, act("meal", cost=20), act("attraction", cost=10), act("hotel", cost=50), accommodation={"price": 200}),
    day(BACK, act("meal", cost="?"), accommodation={"price": 999}),
)  # 5 * (100 + 20 + 10) + 2 taxis * 30 + 2 rooms * (1 + 200) = 1112


@pytest.mark.parametrize(
    ("total", "expected"), [(1112, True), (1011, True), (1010, False), (1235, True), (1236, False), ("1112", True), (0, False), (None, False)]
)  # fmt: skip
def test_the_total_is_within_a_tenth_of_itself_from_the_sum(total, expected):
    assert holds(rules.cost_calculation_correctness, *COSTS, total=total, **PARTY) is expected


TICKET = {
    "attractions": [{"attraction_name": "A", "ticket_price": "60.4"}, {"attraction_name": "B", "ticket_price": ""}]
}


@pytest.mark.parametrize(
    ("name", "stated", "expected"),
    [("A", 60, True), ("A", 60.49, True), ("A", 61, False), ("A", "60", False), ("A", None, False), ("B", None, True), ("C", 60, False), ("", 60, False)],
)  # fmt: skip
def test_an_attraction_exists_and_costs_what_is_stated(name, stated, expected):
    plan = day(STAY, act("attraction", name=name, cost=stated))
    assert holds(rules.validated_attractions, plan, found=entries(**TICKET)) is expected


@pytest.mark.parametrize(
    ("ride", "expected"),
    [
        ({"number": "G1", "from": "a", "to": "b", "cost": 99}, True),
        ({"number": "G1", "from": "a", "to": "b", "cost": 150.4}, True),
        ({"number": "G1", "from": "a", "to": "b", "cost": "150"}, True),
        ({"number": "G1", "from": "a", "to": "b", "cost": 151}, False),
        ({"number": "G2", "from": "a", "to": "b", "cost": 99}, False),
        ({"number": "G1", "to": "b", "cost": 99}, False),
        ({"number": "G1", "from": "a", "to": "b"}, False),
    ],
)
def test_a_trip_is_in_a_timetable_at_one_of_its_prices(ride, expected):
    found = entries(trains=[{"train_no": "G1", "price": "99.0"}, {"train_no": "G1", "price": "150"}])
    assert holds(rules.validated_transportation, day(OUT, act(RIDE, **ride)), found=found) is expected


STATIONS = {
    "trains": [
        {"origin_city": "Home(x)", "destination_city": "Goal", "dep_station_name": "H", "arr_station_name": "G", "train_no": "1"},
        {"origin_city": "Goal", "destination_city": "Home", "dep_station_name": "G", "arr_station_name": "H", "train_no": "2"},
    ]
}  # fmt: skip
THERE, HOME_AGAIN = act(RIDE, **{"from": "H", "to": "G"}), act(RIDE, **{"from": "G", "to": "H"})


@pytest.mark.parametrize(
    ("days", "expected"),
    [
        ((day(OUT, THERE), day("Goal (old town)"), day(BACK, HOME_AGAIN)), True),
        ((day(OUT, HOME_AGAIN),), False),
        ((day(OUT),), False),
        ((day(OUT, THERE), day("")), False),
        ((day(OUT, THERE), day("Home")), False),
        ((day(BACK, HOME_AGAIN),), False),
        ((day("Home"),), True),
    ],
)
def test_each_day_begins_where_the_travellers_are(days, expected):
    assert holds(rules.seamless_intercity_transfers, *days, found=entries(**STATIONS)) is expected


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [(OUT, BACK, True), (STAY, STAY, True), ("from Goal to Home", BACK, False), (OUT, "from Goal to Other", False), ("from Home (a) to Goal", BACK, True)],
)  # fmt: skip
def test_the_route_begins_and_ends_at_home(first, last, expected):
    assert holds(rules.closed_loop_route_structure, day(first), day(last)) is expected


def test_nothing_comes_twice_over_all_days():
    twice = (day(STAY, act("meal", name="A"), act("attraction", name="A")), day(STAY, act("meal", name="A")))
    assert not holds(rules.diverse_meal_options, *twice)
    assert holds(rules.diverse_attraction_options, *twice)
    assert holds(rules.diverse_meal_options, day(STAY, act("meal"), act("meal")))
