"""The thresholds of the benchmark's rules, each side of each: worked out by hand from its conditions."""

import sqlite3
from functools import partial

import pytest

from opd_envs.deepplanning.database import CREATE, Case, insert_statement
from opd_envs.deepplanning.layout import TABLES
from opd_envs.deepplanning.scoring import rules, times
from opd_envs.deepplanning.scoring.plan import Plan
from opd_envs.deepplanning.scoring.trip import Entries, PlannedTrip
from opd_envs.deepplanning.task import BenchmarkTrip

RIDE, ALL_DAY = "travel_intercity_public", "Open 24 Hours"
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


def trip(*days, total: object = None, found: Entries | None = None, **facts) -> PlannedTrip:
    plan = Plan.model_validate({"daily_plans": days, "budget_summary": {"total_estimated_budget": total}})
    return PlannedTrip(plan, BenchmarkTrip(origin="Home", num_days=len(days), **facts), found or entries())


sight, meal, hotel, ride = (partial(act, kind) for kind in ("attraction", "meal", "hotel", RIDE))
LUNCH, DINNER = meal("11:00-12:00"), meal("17:00-18:00")
INN = {"accommodation": {"name": "Inn", "price_per_night": 1}}
NIGHT = day(STAY, hotel(), **INN)
COSTS = (
    day(OUT, ride(cost=None), ride(cost=100), ride(cost=999), act("travel_city", cost="30"), **INN),
    day(STAY, meal(cost=20), sight(cost=10), hotel(cost=50), accommodation={"price": 200}),
    day(BACK, meal(cost="?"), accommodation={"price": 999}),
)  # 5 * (100 + 20 + 10) + 2 taxis * 30 + 2 rooms * (1 + 200) = 1112
PLACES = [{"poi_name": name, "latitude": f"{n}.0", "longitude": "1.0"} for n, name in enumerate("ABS")]
THERE, HOME_AGAIN = ride(**{"from": "H", "to": "G"}), ride(**{"from": "G", "to": "H"})
STATIONS = entries(
    trains=[
        {"origin_city": a, "destination_city": b, "dep_station_name": c, "arr_station_name": d, "train_no": c}
        for a, b, c, d in (("Home(x)", "Goal", "H", "G"), ("Goal", "Home", "G", "H"))
    ]
)


def way(minutes: str) -> Entries:
    row = {"origin": "0.0,1.0", "destination": "1.0,1.0", "duration_minutes": minutes}
    return entries(locations=PLACES, distances=[row])


def hours(opens: str, closes: str) -> Entries:
    both = {"opening_time": opens, "closing_time": closes}
    return entries(attractions=[{"attraction_name": "A", **both}], restaurants=[{"restaurant_name": "A", **both}])


OPEN = (
    ("09:00-17:00", "09:00", "17:00", True), ("08:59-17:00", "09:00", "17:00", False),
    ("09:00-17:01", "09:00", "17:00", False),
    ("23:00-24:00", "09:00", "24:00", True), ("22:00-01:00", "18:00", "02:00", True),
    ("22:00-03:00", "18:00", "02:00", False),
    ("01:00-02:00", "18:00", "02:00", True), ("12:00-13:00", "18:00", "02:00", False),
    ("22:00-01:00", "09:00", "23:00", False),
)  # fmt: skip
# (rule, a trip of the values, rows of the values and whether the rule holds)
TABLE = (
    (rules.essential_meal_coverage, lambda slot, num: trip(day(OUT, ride(slot), *(LUNCH, DINNER)[:num])), (
        ("07:00-09:59", 1, False), ("07:00-09:59", 2, True), ("07:00-10:00", 0, False), ("07:00-10:00", 1, True),
        ("07:00-14:59", 2, True), ("07:00-14:59", 0, False), ("07:00-15:00", 0, True), ("07:00-15:00", 1, True),
        ("07:00-15:00", 2, False),
    )),
    (rules.essential_meal_coverage,
     lambda slot, num: trip(day(OUT), day(STAY, LUNCH, DINNER), day(BACK, ride(slot), *(LUNCH, DINNER)[:num])), (
        ("08:59-23:00", 0, True), ("08:59-23:00", 1, False), ("09:00-23:00", 1, True), ("09:00-23:00", 2, False),
        ("14:59-23:00", 0, True), ("15:00-23:00", 0, False), ("15:00-23:00", 1, True), ("15:00-23:00", 2, True),
    )),
    (rules.essential_meal_coverage, trip, (
        (day(STAY, LUNCH), False), (day(STAY, LUNCH, meal("at noon")), False),
        (day(STAY, LUNCH, meal("13:59-15:00")), False),
        (day(STAY, LUNCH, meal("14:00-15:00")), True), (day(OUT), day(BACK), True),  # trips without a time say nothing
    )),
    (rules.essential_attraction_coverage, lambda *found: trip(day(STAY, *found)), (
        (sight(name="A"), sight(name="B"), True), (sight("09:00-13:00", name="A"), True),
        (sight("09:00-12:59", name="A"), False),
        (sight("09:00-12:00", name="A"), act("travel_city", "12:00-13:00", **{"from": "A", "to": "x"}), True),
        (sight("09:00-12:00", name="A"), act("travel_city", "12:00-13:00", **{"from": "y", "to": "x"}), False),
    )),
    (rules.essential_attraction_coverage,
     lambda city, slot, *found: trip(day(OUT, sight()), day(city, ride(slot), *found)), (
        (OUT, "07:00-11:59", False), (OUT, "07:00-12:00", True), (BACK, "16:00-18:00", True),
        (BACK, "16:01-18:00", False),
        (OUT, "07:00-11:59", sight(), True), (BACK, "16:01-18:00", sight(), True),
    )),
    (rules.traceable_accommodation, trip, (
        (NIGHT, day(), True), (NIGHT, day(accommodation={"name": "-"}), True), (NIGHT, day(accommodation="-"), False),
        (NIGHT, day(**INN), False), (day(STAY, hotel()), day(), False),
        (day(STAY, hotel(), accommodation={}), day(), False),
        (day(STAY, **INN), day(), False),
    )),
    (times.reasonable_transfer_time,
     lambda minutes, start: trip(
         day(STAY, meal("10:00-11:00", name="A"), sight(f"{start}-12:30", name="B")), found=way(minutes)), (
        ("23", "11:17", False), ("23", "11:18", True), ("23", "11:30", True),
        ("23", "11:31", False),  # 5 less, the next ten
        ("28", "11:19", False), ("28", "11:20", True), ("28", "11:33", True),
        ("28", "11:34", False),  # the ten before, 5 more
        ("3", "11:00", True), ("3", "11:10", True), ("3", "11:11", False),
        ("x", "12:00", True),  # an unknown way is skipped
    )),
    # A trip is reached at its origin and left at its destination; the matrix has no row from S.
    (times.reasonable_transfer_time, lambda a, b: trip(
        day(STAY, ride("10:00-11:00", **{"from": a, "to": b}), meal("11:50-12:50", name="B")), found=way("20")), (
        ("S", "A", False), ("A", "S", True),
    )),
    (times.no_time_overlaps, lambda slot: trip(day(STAY, meal(slot), act("buffer", "10:00-12:00"))), (
        ("12:00-13:00", True), ("11:59-13:00", False), ("noon", True), ("23:00-01:00", True),
    )),
    (times.attraction_visit_within_opening_hours,
     lambda slot, *found: trip(day(STAY, sight(slot, name="A")), found=hours(*found)),
     (*OPEN, ("09:00-10:00", "", "", False), ("when we like", ALL_DAY, ALL_DAY, True))),
    (times.dining_within_service_hours, lambda slot, *found: trip(day(STAY, meal(slot, name="A")), found=hours(*found)),
     (*OPEN, ("09:00-10:00", "", "", True), ("noon", "", "", False))),
    # The second day is a Monday where the first is a Sunday.
    (times.avoidance_of_closure_days, lambda closed, weekday: trip(
        day(), day(STAY, sight(name="A")), depart_weekday=weekday,
        found=entries(attractions=[{"attraction_name": "A", "closing_dates": closed}])), (
        ("Monday", 7, False), ("monday, Friday", 7, False), ("周一,周日", 7, False), ("Monday", 1, True),
        ("Mondays", 7, True),
        ("Monday", None, True),
    )),
    (times.reasonable_duration_at_attractions, lambda slot: trip(day(STAY, sight(slot, name="A")), found=entries(
        attractions=[{"attraction_name": "A", "min_visit_hours": "1", "max_visit_hours": "2.5"}])), (
        ("10:00-10:59", False), ("10:00-11:00", True), ("10:00-12:30", True), ("10:00-12:31", False),
        ("23:30-00:45", True),
        ("", False),
    )),
    (times.reasonable_meal_duration, lambda slot, name="A": trip(day(STAY, meal(slot, name=name))), (
        ("12:00-12:29", False), ("12:00-12:30", True), ("12:00-14:30", True), ("12:00-14:31", False),
        ("23:30-00:30", True),
        ("", False), ("", "", True),  # a meal without a name is not checked
    )),
    (rules.cost_calculation_correctness, lambda total: trip(*COSTS, total=total, num_people=5, num_rooms=2), (
        (1112, True), (1011, True), (1010, False), (1235, True), (1236, False), ("1112", True), (0, False),
        (None, False),
        (-1112, False),
    )),
    (rules.validated_attractions, lambda name, cost: trip(day(STAY, sight(name=name, cost=cost)), found=entries(
        attractions=[{"attraction_name": "A", "ticket_price": "60.4"}, {"attraction_name": "B"}])), (
        ("A", 60, True), ("A", 60.49, True), ("A", 61, False), ("A", "60", False), ("A", None, False),
        ("B", None, True),
        ("C", 60, False), ("", 60, False),
    )),
    (rules.validated_accommodation, lambda stay, price, gone_to: trip(
        day(STAY, hotel(name=gone_to), accommodation={"name": stay, "price": price}), day(accommodation={"name": "-"}),
        found=entries(hotels=[{"name": "Inn", "price": "1.0"}])), (
        ("Inn", 1, "Inn", True), ("Inn", 2, "Inn", False), ("Other", 1, "Inn", False), ("Inn", 1, "Other", False),
        ("", 1, "", True),
    )),
    (rules.validated_transportation, lambda number, start, cost: trip(
        day(OUT, ride(number=number, **{"from": start, "to": "b"}, cost=cost)),
        found=entries(trains=[{"train_no": "G1", "price": "99.0"}, {"train_no": "G1", "price": "150"}])), (
        ("G1", "a", 99, True), ("G1", "a", 150.4, True), ("G1", "a", "150", True), ("G1", "a", 151, False),
        ("G2", "a", 99, False),
        ("G1", "", 99, False), ("G1", "a", None, False),
    )),
    (rules.seamless_intercity_transfers, lambda *days: trip(*days, found=STATIONS), (
        (day(OUT, THERE), day("Goal (old town)"), day(BACK, HOME_AGAIN), True), (day(OUT, HOME_AGAIN), False),
        (day(OUT), False),
        (day(OUT, THERE), day(""), False), (day(OUT, THERE), day("Home"), False), (day(BACK, HOME_AGAIN), False),
        (day("Home"), True),
    )),
    (rules.closed_loop_route_structure, lambda first, last: trip(day(first), day(last)), (
        (OUT, BACK, True), (STAY, STAY, True), (BACK, BACK, False), (OUT, "from Goal to Other", False),
        ("from Home (a) to Goal", BACK, True),
    )),
    (rules.diverse_meal_options,
     lambda *names: trip(*(day(STAY, meal(name=name), sight(name="A")) for name in names)), (
        ("A", "A", False), ("A", "B", True), ("", "", True),
    )),
    (rules.diverse_attraction_options,
     lambda *names: trip(*(day(STAY, sight(name=name), meal(name="A")) for name in names)), (
        ("A", "A", False), ("A", "B", True), ("", "", True),
    )),
    (rules.ends_with_accommodation, trip, ((NIGHT, day(), True), (day(), day(), False),
    (day(STAY, hotel(), LUNCH), day(), False))),
)  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "build", "values"),
    [
        pytest.param(rule, build, values, id=f"{rule.__name__}-{number}-{place}")
        for number, (rule, build, rows) in enumerate(TABLE)
        for place, values in enumerate(rows)
    ],
)
def test_a_rule_holds_on_the_right_side_of_its_threshold(rule, build, values):
    *given, expected = values
    assert rule(build(*given)) is expected


def test_a_plan_has_the_querys_number_of_days():
    assert rules.valid_trip_duration(trip(day(), day()))
    assert not rules.valid_trip_duration(trip(day(), day())._replace(plan=trip(day()).plan))
