"""Constraints: a plan that keeps to everything passes, and one thing wrong with it is found under its own name."""

import copy
import itertools
import json

import pytest

from opd_envs.travel.constraints import COMMONSENSE, HARD, judge
from opd_envs.travel.entries import clock, minutes_of
from opd_envs.travel.generate import GRADES, generate_task
from opd_envs.travel.itinerary import cost, follow
from opd_envs.travel.plan import last_block, parse_plan
from opd_envs.travel.task import HardConstraints

PRECONDITIONS = {"days_complete", "entries_exist", "route_closed"}


def generated(database, *, grade: int, number: int, language: str = "en"):
    return generate_task(
        database, seed=3, grade=grade, language=language, number=number, episodes=True, num_cities=None
    )


class Reference:
    """A generated trip with its solution, to be changed and judged."""

    def __init__(self, database, made):
        self.database = database.in_episode(made.episode_seed)
        self.task = made.task
        self.plan = json.loads(last_block(made.solution, "plan"))

    def judge(self, plan=None, *, task=None, restate: bool = True):
        plan = copy.deepcopy(self.plan if plan is None else plan)
        if restate:  # so that a change of the plan is not a change of its sum as well
            itinerary = follow(self.parse(plan), self.task, self.database)
            plan["total_cost"] = cost(itinerary, self.task.num_people)
        return judge(self.parse(plan), task or self.task, self.database)

    @staticmethod
    def parse(plan):
        return parse_plan(f"<plan>{json.dumps(plan)}</plan>")

    def activities(self, kind: str):
        for day in self.plan["days"]:
            yield from (activity for activity in day["activities"] if activity["type"] == kind)


def broken(verdicts) -> set[str]:
    return {verdict.name for verdict in verdicts if not verdict.satisfied}


@pytest.fixture
def trip(database) -> Reference:
    """Three days, so that one is spent without a trip, with a transfer to shorten on that day."""
    for number in itertools.count():
        made = generated(database, grade=3, number=number)
        if made.task.num_days == 3:
            return Reference(database, made)
    raise AssertionError


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("grade", [grade for grade in GRADES if grade >= 2])
def test_a_reference_plan_keeps_to_every_constraint(database, grade, language):
    for number in range(10):
        made = generated(database, grade=grade, number=number, language=language)
        judgement = Reference(database, made).judge(restate=False)
        assert judgement.passed
        assert judgement.score == 1.0
        assert {v.name for v in judgement.hard} == {name for name, _ in made.task.hard.asked()} != set()


def days_complete(trip):
    trip.plan["days"][1]["day"] = 5


def entries_exist(trip):
    trip.plan["days"][1]["activities"].append({"type": "meal", "name": "Nowhere", "start": "23:00", "end": "23:40"})


def trips_on_timetable(trip):
    leg = trip.plan["days"][0]["activities"][0]
    leg["start"] = clock(minutes_of(leg["start"]) - 5)


def transfers_possible(trip):
    before, after = trip.plan["days"][1]["activities"][2:4]
    after["start"] = before["end"]


def open_when_visited(trip):
    trip.plan["days"][1]["activities"][-1]["end"] = "24:00"


def visits_long_enough(trip):
    sight = next(trip.activities("attraction"))
    sight["end"] = clock(minutes_of(sight["start"]) + 40)


def hotel_every_night(trip):
    trip.plan["days"][0]["hotel"] = None


def meals_enough(trip):
    day = trip.plan["days"][0]
    day["activities"] = [activity for activity in day["activities"] if activity["type"] != "meal"]


def sights_enough(trip):
    day = trip.plan["days"][1]
    day["activities"] = [activity for activity in day["activities"] if activity["type"] != "attraction"]


def nothing_twice(trip):
    first, second = (a for a in trip.plan["days"][1]["activities"] if a["type"] == "meal")
    second["name"] = first["name"]
    # The same place again, so that only its coming twice is wrong: leave time enough to get there.
    second["start"], second["end"] = "18:30", "19:30"


ONE_THING_WRONG = [
    days_complete,
    entries_exist,
    trips_on_timetable,
    transfers_possible,
    open_when_visited,
    visits_long_enough,
    hotel_every_night,
    meals_enough,
    sights_enough,
    nothing_twice,
]


@pytest.mark.parametrize("change", ONE_THING_WRONG, ids=lambda change: change.__name__)
def test_one_thing_wrong_is_found_under_its_own_name_alone(trip, change):
    change(trip)
    judgement = trip.judge()
    assert broken(judgement.commonsense) == {change.__name__}
    if change.__name__ in PRECONDITIONS:  # then no demand is looked at
        assert broken(judgement.hard) == {name for name, _ in trip.task.hard.asked()}
    assert not judgement.passed
    assert 0 < judgement.score < 1


def test_a_wrong_sum_is_named_with_the_right_one(trip):
    right = trip.plan["total_cost"]
    trip.plan["total_cost"] += 1
    judgement = trip.judge(restate=False)
    assert broken(judgement.commonsense) == {"cost_stated"}
    (reason,) = next(v.violations for v in judgement.commonsense if v.name == "cost_stated")
    assert reason.endswith(f"everything comes to {right}")


def test_the_sum_counts_heads_tickets_and_rooms_for_two(database):
    made = next(m for n in range(99) if (m := generated(database, grade=3, number=n)).task.num_people == 3)
    reference = Reference(database, made)
    itinerary = follow(reference.parse(reference.plan), made.task, reference.database)
    heads = sum((stop.place or stop.trip).price for stop in itinerary.stops)
    nights = sum(night.hotel.price for night in itinerary.nights if night.hotel is not None)
    assert reference.plan["total_cost"] == 3 * heads + 2 * nights


def hard_cases(trip: Reference):
    """For each hard constraint a value that this plan does not meet."""
    itinerary = follow(trip.parse(trip.plan), trip.task, trip.database)
    hotels = [night.hotel for night in itinerary.nights if night.hotel is not None]
    city = itinerary.destinations[0]
    visited = {stop.place.name for stop in itinerary.stops if stop.place is not None}
    eaten = {stop.place.category for stop in itinerary.stops if stop.place is not None}
    mode = next(stop.trip.mode for stop in itinerary.stops if stop.trip is not None)
    return {
        "budget": trip.plan["total_cost"] - 1,
        "transport_mode": {"train": "flight", "flight": "train"}[mode],
        "hotel_min_stars": min(hotel.stars for hotel in hotels) + 1,
        "hotel_feature": "helipad",
        "hotel_max_price": max(hotel.price for hotel in hotels) - 1,
        "must_visit": (next(p.name for p in trip.database.places(city, "attraction") if p.name not in visited),),
        "cuisine": next(p.category for p in trip.database.places(city, "restaurant") if p.category not in eaten),
        "arrive_by": "00:01",
    }


@pytest.mark.parametrize("name", HARD)
def test_a_demand_that_is_not_met_is_found_under_its_own_name_alone(trip, name):
    demands = HardConstraints.model_validate({**dict(trip.task.hard.asked()), name: hard_cases(trip)[name]})
    judgement = trip.judge(task=trip.task.model_copy(update={"hard": demands}))
    assert broken(judgement.commonsense) == set()
    assert broken(judgement.hard) == {name}


def test_every_demand_has_a_check_and_every_check_says_what_it_is():
    assert set(HARD) == set(HardConstraints.model_fields)
    for check in (*COMMONSENSE.values(), *HARD.values()):
        assert check.__doc__


def test_a_plan_that_holds_nothing_satisfies_nothing(trip):
    for days in (
        [{"day": n, "activities": [], "hotel": None} for n in (1, 2, 3)],
        [{"day": 1, "activities": [{"type": "meal", "name": "x", "start": "12:00", "end": "13:00"}]}],
    ):
        judgement = trip.judge({"days": days, "total_cost": 0}, restate=False)
        assert judgement.score == 0


def test_the_score_is_half_commonsense_half_demands(trip):
    trip.plan["total_cost"] += 1
    judgement = trip.judge(restate=False)
    num = len(COMMONSENSE)
    assert judgement.score == pytest.approx(0.5 * (num - 1) / num + 0.5)
