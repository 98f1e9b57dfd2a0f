"""Generated tasks of five grades, each with the answer or the plan that solves it, drawn from a seed and a database."""

import datetime
import hashlib
import json
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from opd_envs import Language
from opd_envs.travel.answers import right_answer
from opd_envs.travel.constraints import judge
from opd_envs.travel.database import Database
from opd_envs.travel.entries import PLACE_KINDS, City, Mode, clock
from opd_envs.travel.itinerary import follow
from opd_envs.travel.plan import parse_plan
from opd_envs.travel.schedule import DayPlan, Route, Scheduler, Unplannable, connected, round_trip
from opd_envs.travel.task import HardConstraints, Question, Trip

GRADES = {
    0: "one look-up: the price of one place",
    1: "one search and a choice: the cheapest hotel of so many stars, the first train of a day",
    2: "a day in one city, with one demand and a budget",
    3: "two or three days in another city, with two demands and a budget",
    4: "four to six days in two cities, with four demands and a budget",
}
MAX_DRAWS = 200
"""Most draws of a task; one draw in three is unplannable at worst."""
FIRST_DATE = datetime.date(2026, 1, 1)
NUM_DATES = 365
MAX_PEOPLE = 5
EPISODE_SEED_BITS = 31


class GeneratedTask(NamedTuple):
    """One task."""

    task: Question | Trip
    grade: int
    language: Language
    episode_seed: int
    database_id: str
    """The database in which alone the task has a solution (`Manifest.database_id`)."""
    tools: tuple[str, ...]
    """Tools that a solution needs."""
    solution: str
    """An answer that scores 1."""


_Drawn = tuple[Question | Trip, tuple[str, ...], str]


def generate_task(database: Database, *, seed: int, grade: int, language: Language, number: int) -> GeneratedTask:
    """Return the task of a number, a function of the arguments alone; it has prices of its own.

    Raises:
        RuntimeError: no draw gave a task with a solution.
    """
    identity = f"{seed}:{grade}:{language}:{number}"
    episode_seed = _episode_seed(identity)
    view = database.in_episode(episode_seed)
    rng = random.Random(f"task:{identity}")
    cities = view.cities(language)
    for _ in range(MAX_DRAWS):
        try:
            task, tools, solution = _DRAWS[grade](view, rng, cities)
        except Unplannable:
            continue
        return GeneratedTask(task, grade, language, episode_seed, database.manifest.database_id, tools, solution)
    raise RuntimeError(f"grade {grade}, number {number}: no solvable task in {MAX_DRAWS} draws of {len(cities)} cities")


def answer_text(answer: str) -> str:
    """Return an answer as the prompt asks for it."""
    return f"<answer>{answer}</answer>"


def plan_text(days: Sequence[DayPlan], total_cost: int) -> str:
    """Return a plan as the prompt asks for it."""
    plan = {"days": [day.entry(number) for number, day in enumerate(days, start=1)], "total_cost": total_cost}
    return f"<plan>{json.dumps(plan, ensure_ascii=False)}</plan>"


def _episode_seed(identity: str) -> int:
    return int.from_bytes(hashlib.sha256(f"episode:{identity}".encode()).digest()[:8]) >> (64 - EPISODE_SEED_BITS)


def _date(rng: random.Random) -> datetime.date:
    return FIRST_DATE + datetime.timedelta(days=rng.randrange(NUM_DATES))


def _look_up(database: Database, rng: random.Random, cities: Sequence[City]) -> _Drawn:
    city = rng.choice(cities)
    place = rng.choice(database.places(city, rng.choice(PLACE_KINDS)))
    question = Question(about="price", city=city.name, name=place.name)
    return question, ("get_price",), answer_text(right_answer(question, database))


def _choice(database: Database, rng: random.Random, cities: Sequence[City]) -> _Drawn:
    city = rng.choice(cities)
    if rng.random() < 0.5:
        stars = rng.randint(2, max(hotel.stars for hotel in database.places(city, "hotel")))
        question = Question(about="cheapest_hotel", city=city.name, min_stars=stars)
        return question, ("search_hotels",), answer_text(right_answer(question, database))
    reachable = connected(database, city, "train")
    if not reachable:
        raise Unplannable(f"no train leaves {city.name}")
    question = Question(about="first_train", city=city.name, destination=rng.choice(reachable).name, date=_date(rng))
    return question, ("search_trains",), answer_text(right_answer(question, database))


def _destination(database: Database, rng: random.Random, start: City, home: City, mode: Mode | None) -> City:
    """Draw a city with trips from `start` and to `home`."""
    back = {city.id for city in connected(database, home, mode)}  # trips come in both directions
    found = [city for city in connected(database, start, mode) if city.id != home.id and city.id in back]
    if not found:
        raise Unplannable(f"nothing leads from {start.name} on")
    return rng.choice(found)


def _trip(
    database: Database, rng: random.Random, cities: Sequence[City], *, num_stays: int, num_demands: int
) -> _Drawn:
    """Draw a trip to so many cities with its reference plan, and demands that the plan meets."""
    origin = rng.choice(cities)
    mode: Mode | None = rng.choice(("train", "flight", None)) if num_stays else None
    visited = [origin]
    for _ in range(num_stays):
        visited.append(_destination(database, rng, visited[-1], origin, mode))
    stays = [(city, rng.randint(2, 3)) for city in visited[1:]]
    start_date = _date(rng)
    route = (
        round_trip(database, rng, origin=origin, start_date=start_date, days_in=stays, mode=mode)
        if stays
        else Route((origin,), {}, {})
    )
    days = Scheduler(database, rng).plan(route, start_date)
    bare = Trip(
        origin=origin.name,
        destinations=tuple(city.name for city, _ in stays) or (origin.name,),
        start_date=start_date,
        num_days=len(days),
        num_people=rng.randint(1, MAX_PEOPLE),
    )
    total = follow(parse_plan(plan_text(days, 0)), bare, database).cost
    task = bare.model_copy(update={"hard": _demands(rng, route, days, total, mode, num_demands)})
    solution = plan_text(days, total)
    judgement = judge(parse_plan(solution), task, database)
    if not judgement.passed:
        raise RuntimeError(f"the reference plan violates a rule: the scheduler and the checks disagree: {judgement}")
    return task, _tools(num_stays > 0, mode), solution


_DRAWS: dict[int, Callable[[Database, random.Random, Sequence[City]], _Drawn]] = {
    0: _look_up,
    1: _choice,
    2: partial(_trip, num_stays=0, num_demands=1),
    3: partial(_trip, num_stays=1, num_demands=2),
    4: partial(_trip, num_stays=2, num_demands=4),
}


def _demands(
    rng: random.Random, route: Route, days: Sequence[DayPlan], total: int, mode: Mode | None, num: int
) -> HardConstraints:
    """Draw a budget above the reference plan's cost, and `num` more demands that the plan meets."""
    visits = [visit.place for day in days for visit in day.visits]
    hotels = [day.hotel for day in days if day.hotel is not None]
    sights = sorted({place.name for place in visits if place.kind == "attraction"})
    offers: dict[str, object] = {
        "must_visit": tuple(rng.sample(sights, min(len(sights), rng.randint(1, 2)))),
        "cuisine": rng.choice([place.category for place in visits if place.kind == "restaurant"]),
    }
    if hotels:
        offers["hotel_min_stars"] = min(hotel.stars for hotel in hotels)
        offers["hotel_max_price"] = -(-max(hotel.price for hotel in hotels) // 50) * 50
        shared = sorted(set.intersection(*(set(hotel.features) for hotel in hotels)))
        if shared:
            offers["hotel_feature"] = rng.choice(shared)
    if 0 in route.first_trips:
        offers["arrive_by"] = clock(min(-(-route.first_trips[0].arrives // 60) * 60, 24 * 60))
    chosen = rng.sample(sorted(offers), min(num, len(offers)))
    demands = {name: offers[name] for name in chosen}
    if mode is not None and route.first_trips:
        demands["transport_mode"] = mode
    budget = -(-int(total * rng.uniform(1.05, 1.3)) // 10) * 10
    return HardConstraints.model_validate({**demands, "budget": budget})


def _tools(travels: bool, mode: Mode | None) -> tuple[str, ...]:
    moving = [f"search_{m}s" for m in ("flight", "train") if mode in (None, m)] + ["search_hotels"]
    return (
        *(moving if travels else ()),
        *("search_restaurants", "search_attractions", "get_price", "get_opening_hours", "place_distance", "add_costs"),
    )
