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
    """Return a case of the given rows, in the importer's own tables."""
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
    return rule(PlannedTrip(plan, task, found or entries()))


def table(*cases):
    """Return a decorator: one test for each case, whose last value is the expected answer."""
    names = ("first", "second", "third", "fourth")[: len(cases[0]) - 1]
    return pytest.mark.parametrize((*names, "expected"), cases)


MEALS = LUNCH, DINNER = act("meal", "11:00-12:00"), act("meal", "17:00-18:00")


@table(
    ("07:00-09:59", 1, False), ("07:00-09:59", 2, True),
    ("07:00-10:00", 0, False), ("07:00-10:00", 1, True), ("07:00-14:59", 2, True), ("07:00-14:59", 0, False),
    ("07:00-15:00", 0, True), ("07:00-15:00", 1, True), ("07:00-15:00", 2, False),
)  # fmt: skip
def test_meals_after_an_arrival(first, second, expected):
    assert holds(rules.essential_meal_coverage, day(OUT, act(RIDE, first), *MEALS[:second])) is expected


@table(
    ("08:59-23:00", 0, True), ("08:59-23:00", 1, False),
    ("09:00-23:00", 1, True), ("09:00-23:00", 2, False), ("14:59-23:00", 0, True),
    ("15:00-23:00", 0, False), ("15:00-23:00", 1, True), ("15:00-23:00", 2, True),
)  # fmt: skip
def test_meals_before_a_departure(first, second, expected):
    leaves = day(BACK, act(RIDE, first), *MEALS[:second])
    assert holds(rules.essential_meal_coverage, day(OUT), day(STAY, *MEALS), leaves) is expected


@table(
    ([day(STAY, LUNCH)], False),
    ([day(STAY, LUNCH, act("meal", "at noon"))], False),
    ([day(STAY, LUNCH, act("meal", "13:59-15:00"))], False),
    ([day(STAY, LUNCH, act("meal", "14:00-15:00"))], True),
    ([day(OUT), day(BACK)], True),  # trips without a time say nothing
)
def test_a_day_in_one_city_has_two_meals_two_hours_apart(first, expected):
    assert holds(rules.essential_meal_coverage, *first) is expected


SIGHT, NOON = act("attraction", "09:00-12:00", name="A"), "12:00-13:00"


@table(
    ((act("attraction", name="A"), act("attraction", name="B")), True),
    ((act("attraction", "09:00-13:00", name="A"),), True),
    ((act("attraction", "09:00-12:59", name="A"),), False),
    ((SIGHT, act("travel_city", NOON, **{"from": "A", "to": "x"})), True),
    ((SIGHT, act("travel_city", NOON, **{"from": "y", "to": "x"})), False),
)
def test_a_day_in_one_city_has_two_attractions_or_four_hours_of_one(first, expected):
    assert holds(rules.essential_attraction_coverage, day(STAY, *first)) is expected


@table(
    (OUT, "07:00-11:59", False), (OUT, "07:00-12:00", True), (BACK, "16:00-18:00", True), (BACK, "16:01-18:00", False)
)
def test_a_day_with_a_trip_leaves_time_for_an_attraction_or_has_one(first, second, expected):
    before = () if first == OUT else (day(OUT),)
    assert holds(rules.essential_attraction_coverage, *before, day(first, act(RIDE, second))) is expected
    assert holds(rules.essential_attraction_coverage, *before, day(first, act(RIDE, second), act("attraction")))


INN = {"accommodation": {"name": "Inn", "price_per_night": 1}}


@table(
    (day(STAY, act("hotel"), **INN), day(), True),
    (day(STAY, act("hotel"), **INN), day(accommodation={"name": "-"}), True),
    (day(STAY, act("hotel"), **INN), day(accommodation="-"), False),
    (day(STAY, act("hotel"), **INN), day(**INN), False),
    (day(STAY, act("hotel")), day(), False),
    (day(STAY, act("hotel"), accommodation={}), day(), False),
    (day(STAY, **INN), day(), False),
)
def test_every_night_but_the_last_is_stated_and_gone_to(first, second, expected):
    assert holds(rules.traceable_accommodation, first, second) is expected


PLACES = [{"poi_name": name, "latitude": f"{n}.0", "longitude": "1.0"} for n, name in enumerate("ABS")]


def way(minutes: str) -> Entries:
    row = {"origin": "0.0,1.0", "destination": "1.0,1.0", "duration_minutes": minutes}
    return entries(locations=PLACES, distances=[row])


@table(
    ("23", "11:17", False), ("23", "11:18", True), ("23", "11:30", True), ("23", "11:31", False),  # 5 less, the next ten
    ("28", "11:19", False), ("28", "11:20", True), ("28", "11:33", True), ("28", "11:34", False),  # the ten before, 5 more
    ("3", "11:00", True), ("3", "11:10", True), ("3", "11:11", False), ("x", "12:00", True),  # an unknown way is skipped
)  # fmt: skip
def test_a_transfer_takes_what_the_way_takes(first, second, expected):
    stops = (act("meal", "10:00-11:00", name="A"), act("attraction", f"{second}-12:30", name="B"))
    assert holds(times.reasonable_transfer_time, day(STAY, *stops), found=way(first)) is expected


@table(("S", "A", False), ("A", "S", True))  # the matrix has no row from S
def test_a_trip_is_reached_at_its_origin_and_left_at_its_destination(first, second, expected):
    ride = act(RIDE, "10:00-11:00", **{"from": first, "to": second})
    plan = day(STAY, ride, act("meal", "11:50-12:50", name="B"))
    assert holds(times.reasonable_transfer_time, plan, found=way("20")) is expected


@table(("12:00-13:00", True), ("11:59-13:00", False), ("noon", True), ("23:00-01:00", True))
def test_activities_do_not_overlap(first, expected):
    assert holds(times.no_time_overlaps, day(STAY, act("meal", first), act("buffer", "10:00-12:00"))) is expected


ALL_DAY = "Open 24 Hours"


@table(
    ("09:00-17:00", "09:00", "17:00", True), ("08:59-17:00", "09:00", "17:00", False), ("09:00-17:01", "09:00", "17:00", False),
    ("23:00-24:00", "09:00", "24:00", True), ("22:00-01:00", "18:00", "02:00", True), ("22:00-03:00", "18:00", "02:00", False),
    ("01:00-02:00", "18:00", "02:00", True), ("12:00-13:00", "18:00", "02:00", False), ("22:00-01:00", "09:00", "23:00", False),
)  # fmt: skip
def test_places_are_visited_while_they_are_open(first, second, third, expected):
    hours = {"opening_time": second, "closing_time": third}
    found = entries(attractions=[{"attraction_name": "A", **hours}], restaurants=[{"restaurant_name": "A", **hours}])
    visit, meal = (day(STAY, act(kind, first, name="A")) for kind in ("attraction", "meal"))
    assert holds(times.attraction_visit_within_opening_hours, visit, found=found) is expected
    assert holds(times.dining_within_service_hours, meal, found=found) is expected


@table(
    (times.attraction_visit_within_opening_hours, act("attraction", "09:00-10:00", name="A"), False),
    (times.attraction_visit_within_opening_hours, act("attraction", "when we like", name="B"), True),
    (times.dining_within_service_hours, act("meal", "09:00-10:00", name="A"), True),
    (times.dining_within_service_hours, act("meal", "noon", name="A"), False),
)
def test_unknown_hours_close_an_attraction_and_no_restaurant(first, second, expected):
    found = entries(
        attractions=[
            {"attraction_name": "A"},
            {"attraction_name": "B", "opening_time": ALL_DAY, "closing_time": ALL_DAY},
        ],
        restaurants=[{"restaurant_name": "A"}],
    )
    assert holds(first, day(STAY, second), found=found) is expected


@table(
    ("Monday", 7, False), ("monday, Friday", 7, False), ("周一,周日", 7, False), ("Monday", 1, True), ("Mondays", 7, True),
    ("Monday", None, True),
)  # fmt: skip
def test_no_attraction_is_visited_on_a_closing_day(first, second, expected):
    found = entries(attractions=[{"attraction_name": "A", "closing_dates": first}])
    days = (day(), day(STAY, act("attraction", name="A")))  # the second day: Monday where the first is Sunday
    assert holds(times.avoidance_of_closure_days, *days, found=found, depart_weekday=second) is expected


@table(
    ("10:00-10:59", False),
    ("10:00-11:00", True),
    ("10:00-12:30", True),
    ("10:00-12:31", False),
    ("23:30-00:45", True),
    ("", False),
)
def test_a_visit_takes_the_databases_time(first, expected):
    found = entries(attractions=[{"attraction_name": "A", "min_visit_hours": "1", "max_visit_hours": "2.5"}])
    visit = day(STAY, act("attraction", first, name="A"))
    assert holds(times.reasonable_duration_at_attractions, visit, found=found) is expected


@table(
    ("12:00-12:29", False),
    ("12:00-12:30", True),
    ("12:00-14:30", True),
    ("12:00-14:31", False),
    ("23:30-00:30", True),
    ("", False),
)
def test_a_meal_takes_half_an_hour_to_two_and_a_half(first, expected):
    assert holds(times.reasonable_meal_duration, day(STAY, act("meal", first, name="A"))) is expected
    assert holds(times.reasonable_meal_duration, day(STAY, act("meal", first)))  # a meal without a name is not checked


COSTS = (
    day(OUT, act(RIDE, cost=None), act(RIDE, cost=100), act(RIDE, cost=999), act("travel_city", cost="30"), **INN),
    day(STAY, act("meal", cost=20), act("attraction", cost=10), act("hotel", cost=50), accommodation={"price": 200}),
    day(BACK, act("meal", cost="?"), accommodation={"price": 999}),
)  # 5 * (100 + 20 + 10) + 2 taxis * 30 + 2 rooms * (1 + 200) = 1112


@table(
    (1112, True),
    (1011, True),
    (1010, False),
    (1235, True),
    (1236, False),
    ("1112", True),
    (0, False),
    (None, False),
    (-1112, False),
)
def test_the_total_is_within_a_tenth_of_itself_from_the_sum(first, expected):
    assert holds(rules.cost_calculation_correctness, *COSTS, total=first, num_people=5, num_rooms=2) is expected


@table(
    ("A", 60, True), ("A", 60.49, True), ("A", 61, False), ("A", "60", False), ("A", None, False), ("B", None, True),
    ("C", 60, False), ("", 60, False),
)  # fmt: skip
def test_an_attraction_exists_and_costs_what_is_stated(first, second, expected):
    tickets = [{"attraction_name": "A", "ticket_price": "60.4"}, {"attraction_name": "B", "ticket_price": ""}]
    plan = day(STAY, act("attraction", name=first, cost=second))
    assert holds(rules.validated_attractions, plan, found=entries(attractions=tickets)) is expected


@table(
    ("Inn", 1, "Inn", True),
    ("Inn", 2, "Inn", False),
    ("Other", 1, "Inn", False),
    ("Inn", 1, "Other", False),
    ("", 1, "", True),
)
def test_a_night_is_in_a_hotel_that_exists_at_its_price(first, second, third, expected):
    night = day(STAY, act("hotel", name=third), accommodation={"name": first, "price": second})
    found = entries(hotels=[{"name": "Inn", "price": "1.0"}])
    assert holds(rules.validated_accommodation, night, day(accommodation={"name": "-"}), found=found) is expected


@table(
    ({"number": "G1", "from": "a", "to": "b", "cost": 99}, True),
    ({"number": "G1", "from": "a", "to": "b", "cost": 150.4}, True),
    ({"number": "G1", "from": "a", "to": "b", "cost": "150"}, True),
    ({"number": "G1", "from": "a", "to": "b", "cost": 151}, False),
    ({"number": "G2", "from": "a", "to": "b", "cost": 99}, False),
    ({"number": "G1", "to": "b", "cost": 99}, False),
    ({"number": "G1", "from": "a", "to": "b"}, False),
)
def test_a_trip_is_in_a_timetable_at_one_of_its_prices(first, expected):
    found = entries(trains=[{"train_no": "G1", "price": "99.0"}, {"train_no": "G1", "price": "150"}])
    assert holds(rules.validated_transportation, day(OUT, act(RIDE, **first)), found=found) is expected


STATIONS = [("Home(x)", "Goal", "H", "G"), ("Goal", "Home", "G", "H")]
TRAINS = [
    {"origin_city": a, "destination_city": b, "dep_station_name": c, "arr_station_name": d, "train_no": c} for a, b, c, d in STATIONS
]  # fmt: skip
THERE, HOME_AGAIN = act(RIDE, **{"from": "H", "to": "G"}), act(RIDE, **{"from": "G", "to": "H"})


@table(
    ((day(OUT, THERE), day("Goal (old town)"), day(BACK, HOME_AGAIN)), True),
    ((day(OUT, HOME_AGAIN),), False),
    ((day(OUT),), False),
    ((day(OUT, THERE), day("")), False),
    ((day(OUT, THERE), day("Home")), False),
    ((day(BACK, HOME_AGAIN),), False),
    ((day("Home"),), True),
)
def test_each_day_begins_where_the_travellers_are(first, expected):
    assert holds(rules.seamless_intercity_transfers, *first, found=entries(trains=TRAINS)) is expected


@table(
    (OUT, BACK, True),
    (STAY, STAY, True),
    (BACK, BACK, False),
    (OUT, "from Goal to Other", False),
    ("from Home (a) to Goal", BACK, True),
)
def test_the_route_begins_and_ends_at_home(first, second, expected):
    assert holds(rules.closed_loop_route_structure, day(first), day(second)) is expected


def test_nothing_comes_twice_over_all_days():
    twice = (day(STAY, act("meal", name="A"), act("attraction", name="A")), day(STAY, act("meal", name="A")))
    assert not holds(rules.diverse_meal_options, *twice)
    assert holds(rules.diverse_attraction_options, *twice)
    assert holds(rules.diverse_meal_options, day(STAY, act("meal"), act("meal")))
    assert holds(rules.valid_trip_duration, *twice)
    assert not holds(rules.ends_with_accommodation, *twice)
