"""`python -m tests.benchmarks.agent_tools`: the agent's tools under 256 conversations at once: calls a second and latency.

Each conversation makes its calls one after another, as a model does, over travel's default database. A benchmark, not a timed test: conversations and tool
processes share this machine's cores. Prints a line a measurement; `--json FILE` writes all as JSON.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from opd.agent.dialogue import Reply
from opd.agent.shared import EpisodeTools
from opd.agent.tool_pool import ToolPool
from opd_envs.travel.database import Database, open_database
from opd_envs.travel.make_database import DEFAULT_NUM_CITIES, write_database
from opd_envs.travel.tools import TOOLS

SEED = 42
WARM_UP_CALLS = 20
Call = tuple[str, dict[str, Any]]


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


class Conversation(NamedTuple):
    """A row's seed and its calls."""

    seed: int
    calls: list[Call]


async def converse(pool: ToolPool, talk: Conversation) -> list[Reply]:
    """One conversation: a call after the reply to the one before."""
    tools = EpisodeTools(pool=pool, names=tuple(TOOLS), episode_seed=talk.seed)
    return [await tools.call(name, arguments) for name, arguments in talk.calls]


async def at_once(pool: ToolPool, conversations: list[Conversation]) -> tuple[list[Reply], float]:
    """All conversations at once: every reply, and the seconds until the last."""
    started = time.perf_counter()
    replies = await asyncio.gather(*(converse(pool, talk) for talk in conversations))
    seconds = time.perf_counter() - started
    return [reply for conversation in replies for reply in conversation], seconds


def quantile_ms(seconds: list[float], share: float) -> float:
    """The quantile of a list of seconds, in milliseconds."""
    return round(1000 * sorted(seconds)[min(int(share * len(seconds)), len(seconds) - 1)], 2)


def tree_cpu_s() -> float:
    """Processor seconds of this process and its running children: what a call costs, however busy the machine is."""
    own = psutil.Process()
    return sum(sum(process.cpu_times()[:2]) for process in (own, *own.children(recursive=True)))


def measure(folder: Path, num_processes: int, num_conversations: int, num_turns: int) -> dict[str, Any]:
    """Run the calls with a fresh pool."""
    rng = random.Random(SEED)
    conversations = []
    database = open_database(folder)
    for seed in range(num_conversations):
        conversations.append(Conversation(seed, [draw_call(rng, database) for _ in range(num_turns)]))
    warm_up = [talk._replace(calls=talk.calls[:1]) for talk in conversations[:WARM_UP_CALLS]]
    with ToolPool(folder, num_processes=num_processes, timeout_s=30) as pool:
        asyncio.run(at_once(pool, warm_up))
        cpu_before = tree_cpu_s()
        replies, seconds = asyncio.run(at_once(pool, conversations))
        cpu_s = tree_cpu_s() - cpu_before
    waits = [reply.queued_s + reply.seconds for reply in replies]
    runs = [reply.seconds for reply in replies]
    return {
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


def main() -> None:
    """The benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=256)
    parser.add_argument("--turns", type=int, default=50, help="calls a conversation (default: 50)")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=1, help="default: 1")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        results: list[Mapping[str, Any]] = []
        folder = Path(name) / "database"
        write_database(folder, seed=SEED, num_cities=DEFAULT_NUM_CITIES)
        for num_processes in args.processes:
            for _ in range(args.rounds):
                results.append(measure(folder, num_processes, args.conversations, args.turns))
                print(json.dumps(results[-1]), flush=True)
    if args.json is not None:
        machine = {"cores": os.cpu_count(), "python": platform.python_version()}
        args.json.write_text(json.dumps({"machine": machine, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
