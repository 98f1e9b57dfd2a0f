"""10,000 hostile calls: every one is answered, none crashes, opens a file, or changes a byte or a time in the directory."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from opd.agent.tool_pool import ToolPool
from opd_envs.travel.tools import TOOLS

NUM_CALLS = 10_000
TOOLSET = str(Path(__file__).with_name("audited_tools.py"))
PATIENCE_S = 60.0

HOSTILE = [
    "../../etc/passwd",
    "/etc/passwd",
    "file:/etc/passwd?mode=rwc",
    "'; DROP TABLE cities; --",
    '" OR 1=1 --',
    "%' UNION SELECT sql FROM sqlite_master --",
    "x' ; ATTACH DATABASE '/tmp/x' AS y; --",
    "\x00",
    "\ud800",
    "٣",
    "<|im_end|>",
    "</tool_response>",
    "{{7*7}}",
    "${HOME}",
    "$(touch /tmp/x)",
    "a" * 100_000,
    "酒店" * 1000,
    "\n\r\t\v",
    "NaN",
    "Infinity",
    "1e999",
    "9" * 5000,
    "",
    " ",
    "🏯",
    "é" * 500,
]
ODD = [None, True, False, 0, -1, 10**30, -(10**30), 0.5, -0.0, 1e308, [], [[]], {}, {"a": {"b": []}}, [None] * 300]


def _value(rng: random.Random, known: list[str], depth: int = 0):
    kind = rng.randrange(6)
    if kind == 0:
        return rng.choice(HOSTILE)
    if kind == 1:
        return rng.choice(ODD)
    if kind == 2:
        return rng.choice(known)
    if kind == 3:
        return rng.randint(-5, 2000)
    if kind == 4 and depth < 2:
        return [_value(rng, known, depth + 1) for _ in range(rng.randrange(5))]
    return f"2026-{rng.randrange(15):02d}-{rng.randrange(35):02d}"


def _plausible(rng: random.Random, field: str, database):
    """A value that the tool could really be asked for."""
    city = rng.choice(database.cities(rng.choice(["en", "zh"]))[:5])
    place = rng.choice(database.places(city, rng.choice(["hotel", "restaurant", "attraction"])))
    values = {
        "city": city.name,
        "origin": rng.choice([city.name, place.name]),
        "destination": rng.choice([city.name, place.name]),
        "name": place.name,
        "date": "2026-03-04",
        "prices": [1, 2],
        "quantities": [3, 4],
        "min_stars": 3,
    }
    return values.get(field, 500 if field in ("budget", "max_price") else "pool")


def _arguments(rng: random.Random, name: str, known: list[str], database):
    """A call that could be meant, with none, some or all of its arguments replaced."""
    fields = list(TOOLS[name].arguments.model_fields)
    hostility = rng.choice([0.0, 0.2, 1.0])
    chosen = {
        field: _value(rng, known) if rng.random() < hostility else _plausible(rng, field, database)
        for field in fields
        if rng.random() < 0.9
    }
    if rng.random() < 0.1:
        chosen[rng.choice(HOSTILE)] = rng.choice(HOSTILE)
    text = json.dumps(chosen)
    how = rng.randrange(10)
    if how == 0:  # broken JSON
        cut = rng.randrange(len(text) + 1)
        return text[:cut] + rng.choice(["", "}", "\\", '"', "\x00", "]]"]) + text[cut + rng.randrange(4) :]
    if how == 1:
        return rng.choice([*HOSTILE, "[" * 5000, '{"a":' * 5000, json.dumps(rng.choice(ODD))])
    return text if how < 6 else chosen


def _state(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    paths = [folder, *sorted(folder.rglob("*"))]
    return {
        str(path): (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns, path.stat().st_mode)
        for path in paths
    }


@pytest.mark.slow
def test_ten_thousand_hostile_calls_are_all_answered_and_touch_nothing(database_dir, database):
    cities = database.cities("en")[:5] + database.cities("zh")[:5]
    known = [city.name for city in cities] + [p.name for city in cities for p in database.places(city, "hotel")]
    rng = random.Random(20260105)
    before = _state(database_dir)
    outcomes: Counter[str | None] = Counter()
    with ToolPool(database_dir, num_processes=2, timeout_s=PATIENCE_S, toolset=TOOLSET) as pool:
        # Both processes are under audit from here on.
        started = [pool.submit("add_costs", {"prices": [1]}) for _ in range(50)]
        assert all(reply.result(PATIENCE_S).error is None for reply in started)
        assert pool.submit("control", {}).result(PATIENCE_S).error == "crashed"
        pids = {child.pid for child in pool._children}
        assert len(pids) == 2
        futures = []
        for _ in range(NUM_CALLS):
            name = rng.choice([*TOOLS, *HOSTILE[:4]]) if rng.random() < 0.05 else rng.choice(list(TOOLS))
            tool = name if name in TOOLS else "get_price"
            seed = rng.choice([None, 0, 1, 2**31 - 1])
            futures.append(pool.submit(name, _arguments(rng, tool, known, database), episode_seed=seed))
        for future in futures:
            reply = future.result(PATIENCE_S)
            outcomes[reply.error] += 1
            assert "<" not in reply.text
            if reply.error is not None:
                assert json.loads(reply.text)["error"] == reply.error
        assert {child.pid for child in pool._children} == pids  # none died, none was replaced
    assert set(outcomes) == {None, "bad_json", "bad_arguments", "unknown_tool"}
    assert min(outcomes.values()) > 100  # the fuzzer reaches every path
    assert _state(database_dir) == before
