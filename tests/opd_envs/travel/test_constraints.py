"""Constraints: a plan that keeps to everything passes, and one wrong thing is found under its own name."""

import copy
import itertools
import json

import pytest

from opd_envs.scoring import last_block
from opd_envs.travel.constraints import COMMONSENSE, HARD, judge
from opd_envs.travel.entries import clock, minutes_of
from opd_envs.travel.generate import generate_task
from opd_envs.travel.itinerary import follow
from opd_envs.travel.plan import parse_plan
from opd_envs.travel.task import HardConstraints


def generated(database, *, grade: int, number: int, language: str = "en"):
    return generate_task(database, seed=3, grade=grade, language=language, number=number)


class Reference:
    """A generated trip with its solution, to be changed and judged."""

    def __init__(self, database, made):
        self.database = database.in_episode(made.episode_seed)
        self.task = made.task
        self.plan = json.loads(last_block(made.solution, "plan"))

    def itinerary(self, plan):
        return follow(parse_plan(f"<plan>{json.dumps(plan)}</plan>"), self.task, self.database)

    def judge(self, plan=None, *, task=None, restate: bool = True):
        plan = copy.deepcopy(self.plan if plan is None else plan)
        if restate:  # so that a change of the plan is not a change of its sum as well
            plan["total_cost"] = self.itinerary(plan).cost
        return judge(parse_plan(f"<plan>{json.dumps(plan)}</plan>"), task or self.task, self.database)


def broken(part: dict[str, bool]) -> set[str]:
    return {name for name, holds in part.items() if not holds}


@pytest.fixture
def trip(database) -> Reference:
    """Three days, so that one is spent without a trip."""
    tasks = (generated(database, grade=3, number=number) for number in itertools.count())
    return Reference(database, next(made for made in tasks if made.task.num_days == 3))


def without(kind):
    def change(day):
        day["activities"] = [activity for activity in day["activities"] if activity["type"] != kind]

    return change


def the_same_meal_twice(day):
    first, second = (activity for activity in day["activities"] if activity["type"] == "meal")
    # Leave time enough to get there, so that only its coming twice is wrong.
    second.update(name=first["name"], start="18:30", end="19:30")


def a_short_visit(day):
    sight = next(activity for activity in day["activities"] if activity["type"] == "attraction")
    sight["end"] = clock(minutes_of(sight["start"]) + 40)


NOWHERE = {"type": "meal", "name": "Nowhere", "start": "23:00", "end": "23:40"}
ONE_THING_WRONG = {
    "days_complete": (1, lambda day: day.update(day=5)),
    "entries_exist": (1, lambda day: day["activities"].append(NOWHERE)),
    "trips_on_timetable": (0, lambda day: day["activities"][0].update(start="00:01")),
    "transfers_possible": (1, lambda day: day["activities"][3].update(start=day["activities"][2]["end"])),
    "open_when_visited": (1, lambda day: day["activities"][-1].update(end="24:00")),
    "visits_long_enough": (1, a_short_visit),
    "hotel_every_night": (0, lambda day: day.update(hotel=None)),
    "meals_enough": (0, without("meal")),
    "sights_enough": (1, without("attraction")),
    "nothing_twice": (1, the_same_meal_twice),
}


@pytest.mark.parametrize("name", ONE_THING_WRONG)
def test_one_thing_wrong_is_found_under_its_own_name_alone(trip, name):
    number, change = ONE_THING_WRONG[name]
    change(trip.plan["days"][number])
    judgement = trip.judge()
    assert broken(judgement.commonsense) == {name}
    is_no_trip = name in ("days_complete", "entries_exist")  # then no demand is met
    assert broken(judgement.hard) == (set(judgement.hard) if is_no_trip else set())
    assert 0 < judgement.score < 1


def test_times_and_route_in_disorder_are_found(trip):
    for change, name in (
        (lambda days: days[1]["activities"][0].update(start="23:00"), "times_in_order"),
        (lambda days: days[2]["activities"].pop(), "route_closed"),
    ):
        plan = copy.deepcopy(trip.plan)
        change(plan["days"])
        assert name in broken(trip.judge(plan).commonsense)


def test_a_wrong_sum_costs_its_share_of_half_the_score(trip):
    trip.plan["total_cost"] += 1
    judgement = trip.judge(restate=False)
    assert broken(judgement.commonsense) == {"cost_stated"}
    assert judgement.score == pytest.approx(0.5 * (1 - 1 / len(COMMONSENSE)) + 0.5)


def test_the_sum_counts_heads_tickets_and_rooms_for_two(database):
    made = next(m for n in range(99) if (m := generated(database, grade=3, number=n)).task.num_people == 3)
    reference = Reference(database, made)
    itinerary = reference.itinerary(reference.plan)
    heads = sum((stop.place or stop.trip).price for stop in itinerary.stops)
    nights = sum(night.hotel.price for night in itinerary.nights if night.hotel is not None)
    assert reference.plan["total_cost"] == 3 * heads + 2 * nights


def unmet(trip: Reference):
    """Return for each demand a value that this plan does not meet."""
    itinerary = trip.itinerary(trip.plan)
    hotels = list(itinerary.hotels())
    city = itinerary.destinations[0]
    places = {stop.place.name: stop.place.category for stop in itinerary.stops if stop.place is not None}
    mode = next(stop.trip.mode for stop in itinerary.stops if stop.trip is not None)
    return {
        "budget": trip.plan["total_cost"] - 1,
        "transport_mode": {"train": "flight", "flight": "train"}[mode],
        "hotel_min_stars": min(hotel.stars for hotel in hotels) + 1,
        "hotel_feature": "helipad",
        "hotel_max_price": max(hotel.price for hotel in hotels) - 1,
        "must_visit": (next(p.name for p in trip.database.places(city, "attraction") if p.name not in places),),
        "cuisine": next(
            p.category for p in trip.database.places(city, "restaurant") if p.category not in places.values()
        ),
        "arrive_by": "00:01",
    }


def test_a_demand_that_is_not_met_is_found_under_its_own_name_alone(trip):
    assert list(HARD) == list(HardConstraints.model_fields) == list(unmet(trip))
    for name, value in unmet(trip).items():
        demands = HardConstraints.model_validate({**dict(trip.task.hard.asked()), name: value})
        judgement = trip.judge(task=trip.task.model_copy(update={"hard": demands}))
        assert (broken(judgement.commonsense), broken(judgement.hard)) == (set(), {name})


def test_a_plan_of_nothing_that_exists_satisfies_nothing(trip):
    empty = [{"day": n, "activities": [], "hotel": None} for n in (1, 2, 3)]
    for days in (empty, [{"day": 1, "activities": [NOWHERE]}]):
        assert trip.judge({"days": days, "total_cost": 0}, restate=False).score == 0
