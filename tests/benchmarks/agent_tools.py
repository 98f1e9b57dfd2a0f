"""`python -m tests.benchmarks.agent_tools`: the agent's tools under 256 conversations at once: calls a second and latency.

Each conversation makes its calls one after another, as a model does: over our own world's default database, over imported
travel cases in DeepPlanning's layout, and over its shopping cases, whose cart goes along from call to call. Rounds take the
three in turn, so that their ratios are of one load of the machine. A benchmark, not a timed test: conversations and tool
processes share this machine's cores. Prints a line a measurement; `--json FILE` writes all as JSON.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from tests.opd_envs.deepplanning import shop
from tests.opd_envs.deepplanning.planned import World, write_worlds
from tests.opd_envs.deepplanning.published import DATE

from opd.agent.dialogue import Reply
from opd.agent.environments import DEFAULT_TOOLSET, load_environment
from opd.agent.shared import EpisodeTools
from opd.agent.tool_pool import ToolPool
from opd_envs.deepplanning.__main__ import main as import_main
from opd_envs.deepplanning.parts import ARCHIVES, SHOPPING_PARTS, TOOLSETS
from opd_envs.travel.database import Database, open_database
from opd_envs.travel.make_database import DEFAULT_NUM_CITIES, write_database

SEED = 42
WARM_UP_CALLS = 20
NUM_CASES = 32
"""Of travel, and of shopping at level 3."""
Call = tuple[str, dict[str, Any]]


class Load(NamedTuple):
    """What one conversation after another is drawn from.

    Attributes:
        draw: a conversation's case (None where the database has none) and what draws its next call.
    """

    name: str
    folder: Path
    toolset: str
    draw: Callable[[random.Random], tuple[str | None, Callable[[], Call]]]


def draw_call(rng: random.Random, database: Database) -> Call:
    """A call of our own world's tools as a planner would make it."""
    language = rng.choice(("en", "zh"))
    city = database.city_in(language, rng.randrange(DEFAULT_NUM_CITIES))
    trip = rng.choice(database.trips_from(city))
    places = database.places(city, "attraction")
    route = {"origin": city.name, "destination": database.city_in(language, trip.to_city_id).name}
    calls: tuple[Call, ...] = (
        (f"search_{trip.mode}s", {**route, "date": "2026-03-04"}),
        ("search_hotels", {"city": city.name, "min_stars": 3}),
        ("search_restaurants", {"city": city.name}),
        ("search_attractions", {"city": city.name}),
        ("get_price", {"city": city.name, "name": places[0].name}),
        ("get_opening_hours", {"city": city.name, "name": places[1].name, "date": "2026-03-04"}),
        ("place_distance", {"city": city.name, "origin": places[0].name, "destination": places[1].name}),
        ("city_distance", route),
        ("add_costs", {"prices": [120, 340, 55], "quantities": [2, 1, 4], "budget": 900}),
        ("get_price", {"city": city.name, "name": "no such place"}),
    )
    return rng.choice(calls)


def draw_travel(rng: random.Random, world: World) -> Call:
    """A call of DeepPlanning's travel tools."""
    home, goal = world.w["home"], world.w["goal"]
    start, end = rng.choice(sorted(world.minutes))
    latitude, longitude = world.sights[0].point
    calls: tuple[Call, ...] = (
        (f"query_{world.mode}_info", {"origin": home, "destination": goal, "depDate": DATE}),
        ("query_hotel_info", {"destination": goal, "checkinDate": DATE, "checkoutDate": DATE}),
        ("recommend_attractions", {"city": goal}),
        ("query_attraction_details", {"attraction_name": rng.choice(world.sights).name}),
        ("search_location", {"place_name": rng.choice(world.diners).name}),
        ("query_road_route_info", {"origin": ",".join(start), "destination": ",".join(end)}),
        ("recommend_restaurants", {"latitude": latitude, "longitude": longitude}),
        ("query_restaurant_details", {"restaurant_name": rng.choice(world.diners).name}),
        ("search_location", {"place_name": "no such place"}),
    )
    return rng.choice(calls)


def draw_shopping(rng: random.Random, case: shop.Shop) -> Call:
    """A call of DeepPlanning's shopping tools; every second one changes the cart, or tries to."""
    number = rng.choice(case.products)["product_id"]
    looks: tuple[Call, ...] = (
        ("search_products", {"query": "Larkline Item black"}),
        ("filter_by_brand", {"brand_names": ["Larkline"]}),
        ("filter_by_range", {"condition_key": "price", "operator": "<", "value": 500}),
        ("sort_products", {"sort_by": "price"}),
        ("get_product_details", {"product_ids": [number]}),
        ("calculate_transport_time", {"product_id": number, "destination_address": "beijing"}),
        ("get_user_info", {}),
        ("get_cart_info", {}),
    )
    changes: tuple[Call, ...] = (
        ("add_product_to_cart", {"product_id": number}),
        ("delete_product_from_cart", {"product_id": number}),
        ("add_coupon_to_cart", {"coupon_name": rng.choice(sorted(case.user["coupons"]))}),
    )
    return rng.choice(rng.choice((looks, changes)))


def make_loads(folder: Path) -> list[Load]:
    """Databases in `folder`, and the loads on them."""
    own = folder / "own"
    write_database(own, seed=SEED, num_cities=DEFAULT_NUM_CITIES)
    database = open_database(own)
    worlds = [World("en", number) for number in range(NUM_CASES)]
    shops = [shop.Shop(3, number) for number in range(NUM_CASES)]
    data = write_worlds(folder / "data", worlds)
    shop.write_tar(data / ARCHIVES[SHOPPING_PARTS[3]], 3, [(case.case, case.files()) for case in shops])
    with contextlib.redirect_stdout(sys.stderr):  # the numbers alone are this program's output
        code = import_main(["import", "--data-dir", str(data), "--out", str(folder / "imported")])
    if code:
        raise ValueError(f"{data}: the import failed")

    def of_travel(rng: random.Random) -> tuple[str, Callable[[], Call]]:
        world = rng.choice(worlds)
        return f"en/{world.case}", partial(draw_travel, rng, world)

    def of_shopping(rng: random.Random) -> tuple[str, Callable[[], Call]]:
        case = rng.choice(shops)
        return f"{SHOPPING_PARTS[3]}/{case.case}", partial(draw_shopping, rng, case)

    return [
        Load("own world", own, DEFAULT_TOOLSET, lambda rng: (None, partial(draw_call, rng, database))),
        Load("travel, imported", folder / "imported", TOOLSETS["en"], of_travel),
        Load("shopping, imported", folder / "imported", TOOLSETS[SHOPPING_PARTS[3]], of_shopping),
    ]


class Conversation(NamedTuple):
    """A row's case, its seed and its calls."""

    case_id: str | None
    seed: int
    calls: list[Call]


async def converse(pool: ToolPool, toolset: str, talk: Conversation) -> list[Reply]:
    """One conversation: a call after the reply to the one before, with the state that this one left."""
    loaded = load_environment(toolset)
    tools = EpisodeTools(
        pool=pool, names=tuple(loaded.tools), episode_seed=talk.seed, case_id=talk.case_id, keeps_state=loaded.keeps_state
    )  # fmt: skip
    return [await tools.call(name, arguments) for name, arguments in talk.calls]


async def at_once(pool: ToolPool, toolset: str, conversations: list[Conversation]) -> tuple[list[Reply], float]:
    """All conversations at once: every reply, and the seconds until the last."""
    started = time.perf_counter()
    replies = await asyncio.gather(*(converse(pool, toolset, talk) for talk in conversations))
    seconds = time.perf_counter() - started
    return [reply for conversation in replies for reply in conversation], seconds


def quantile_ms(seconds: list[float], share: float) -> float:
    """The quantile of a list of seconds, in milliseconds."""
    return round(1000 * sorted(seconds)[min(int(share * len(seconds)), len(seconds) - 1)], 2)


def tree_cpu_s() -> float:
    """Processor seconds of this process and its running children: what a call costs, however busy the machine is."""
    own = psutil.Process()
    return sum(sum(process.cpu_times()[:2]) for process in (own, *own.children(recursive=True)))


def measure(load: Load, num_processes: int, num_conversations: int, num_turns: int) -> dict[str, Any]:
    """One load run with a fresh pool."""
    rng = random.Random(SEED)
    conversations = []
    for seed in range(num_conversations):
        case_id, draw = load.draw(rng)
        conversations.append(Conversation(case_id, seed, [draw() for _ in range(num_turns)]))
    warm_up = [talk._replace(calls=talk.calls[:1]) for talk in conversations[:WARM_UP_CALLS]]
    with ToolPool(load.folder, num_processes=num_processes, timeout_s=30, toolset=load.toolset) as pool:
        asyncio.run(at_once(pool, load.toolset, warm_up))
        cpu_before = tree_cpu_s()
        replies, seconds = asyncio.run(at_once(pool, load.toolset, conversations))
        cpu_s = tree_cpu_s() - cpu_before
    waits = [reply.queued_s + reply.seconds for reply in replies]
    runs = [reply.seconds for reply in replies]
    return {
        "load": load.name,
        "load_average": round(os.getloadavg()[0], 1),
        "processes": num_processes,
        "conversations": num_conversations,
        "calls": len(replies),
        "calls_per_s": round(len(replies) / seconds),
        "cpu_ms_per_call": round(1000 * cpu_s / len(replies), 3),
        "p50_ms": quantile_ms(waits, 0.5),
        "p99_ms": quantile_ms(waits, 0.99),
        "p99_in_process_ms": quantile_ms(runs, 0.99),
        "replies": {str(error): num for error, num in sorted(Counter(r.error for r in replies).items(), key=str)},
        "lock_errors": sum("locked" in reply.text or "OperationalError" in reply.text for reply in replies),
    }


def ratios(results: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each load's median over rounds of its ratio to our own world's in the same round, by number of processes."""
    found = []
    for num_processes in sorted({row["processes"] for row in results}):
        rows = [row for row in results if row["processes"] == num_processes]
        own, *others = dict.fromkeys(row["load"] for row in rows)
        base = [row for row in rows if row["load"] == own]
        for name in others:
            pairs = list(zip((row for row in rows if row["load"] == name), base, strict=True))
            keys = ("calls_per_s", "cpu_ms_per_call", "p50_ms", "p99_ms")
            medians = {key: round(statistics.median(one[key] / other[key] for one, other in pairs), 2) for key in keys}
            found.append({"load": name, "processes": num_processes, "rounds": len(pairs), **medians})
    return found


def main() -> None:
    """The benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=256)
    parser.add_argument("--turns", type=int, default=50, help="calls a conversation (default: 50)")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=1, help="times that each load is measured, in turn (default: 1)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        results: list[Mapping[str, Any]] = []
        loads = make_loads(Path(name))
        for num_processes in args.processes:
            for _ in range(args.rounds):
                for load in loads:
                    results.append(measure(load, num_processes, args.conversations, args.turns))
                    print(json.dumps(results[-1]), flush=True)
    compared = ratios(results)
    for row in compared:
        print("to our own world:", json.dumps(row))
    if args.json is not None:
        machine = {"cores": os.cpu_count(), "python": platform.python_version()}
        args.json.write_text(json.dumps({"machine": machine, "results": results, "ratios": compared}, indent=2) + "\n")


if __name__ == "__main__":
    main()
