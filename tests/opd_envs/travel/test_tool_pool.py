"""The tool pool: whatever a tool does, its call is answered, other calls go on, and nothing is left behind."""

import asyncio
import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from tests.processes import is_running

from opd.agent.tool_pool import ToolPool, ToolPoolError
from opd_envs.travel.database import ManifestError

TOOLSET = str(Path(__file__).with_name("misbehaving_tools.py"))
PATIENCE_S = 60.0
"""A deadline for what should be quick: only a hang can reach it."""
CALL_TIMEOUT_S = 6.0
"""Of pools whose calls hang; some that answer have it too, and take less than a millisecond."""


@pytest.fixture
def make_pool(database_dir):
    pools = []

    def make(*, num_processes: int = 1, timeout_s: float = PATIENCE_S) -> ToolPool:
        pools.append(ToolPool(database_dir, num_processes=num_processes, timeout_s=timeout_s, toolset=TOOLSET))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def run(pool: ToolPool, name: str, arguments="{}", **options):
    return asyncio.run(pool.call(name, arguments, **options))


def wait_until(condition) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def pid_of(pool: ToolPool) -> int:
    return json.loads(run(pool, "pid").text)["pid"]


def test_a_call_is_answered_in_the_episode_it_is_made_in(make_pool, database):
    pool = make_pool()
    city = database.cities("zh")[0]
    name = database.places(city, "hotel")[0].name
    for seed in (None, 3, 4):
        reply = run(pool, "get_price", {"city": city.name, "name": name}, episode_seed=seed)
        assert reply.error is None
        assert json.loads(reply.text) == {"price": database.in_episode(seed).place(city, name).price}
        assert reply.seconds > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments", "error", "said"),
    [
        ("get_price", "{", "bad_json", "not JSON at character 1"),
        ("get_price", "[]", "bad_json", "write one JSON object"),
        ("no_such_tool", "{}", "unknown_tool", 'there is no tool "no_such_tool"; the tools are search_flights'),
        ("", "{}", "unknown_tool", "there is no tool"),
        ("get_price", '{"city": 1}', "bad_arguments", "name is missing"),
        ("raise", "{}", "crashed", "raise failed (RuntimeError)"),
        ("not_json", "{}", "crashed", "not_json failed (TypeError)"),
        ("eat", "{}", "crashed", "eat failed (MemoryError)"),
    ],
)
def test_a_failed_call_is_an_error_that_a_model_can_read_and_leaves_the_process_alone(
    make_pool, name, arguments, error, said
):
    pool = make_pool()
    pid = pid_of(pool)
    reply = run(pool, name, arguments)
    assert reply.error == error
    body = json.loads(reply.text)
    assert body["error"] == error
    assert said in body["message"]
    assert pid_of(pool) == pid


def test_a_hung_call_holds_up_its_own_process_and_nothing_else(make_pool):
    pool = make_pool(num_processes=2)

    async def conversation():
        hung = asyncio.create_task(pool.call("hang", "{}"))
        await asyncio.sleep(0)
        replies = [await pool.call("pid", "{}") for _ in range(50)]
        assert not hung.done()
        hung.cancel()
        return replies

    replies = asyncio.run(conversation())
    assert all(reply.error is None for reply in replies)
    assert len({reply.text for reply in replies}) == 1


def test_256_conversations_at_once_are_all_answered_without_a_lock_error(make_pool, database):
    pool = make_pool(num_processes=2)
    cities = database.cities("en")

    async def conversation(number: int):
        city = cities[number % len(cities)]
        place = database.places(city, "restaurant")[number % 10]
        texts = []
        for turn in range(4):
            seed = number * 10 + turn
            reply = await pool.call("get_price", {"city": city.name, "name": place.name}, episode_seed=seed)
            expected = database.in_episode(seed).place(city, place.name).price
            texts.append((reply.error, json.loads(reply.text) == {"price": expected}))
        return texts

    async def load():
        return await asyncio.gather(*(conversation(number) for number in range(256)))

    assert asyncio.run(load()) == [[(None, True)] * 4] * 256


def test_a_call_cancelled_before_its_turn_is_never_run(make_pool):
    pool = make_pool()
    first = pool.submit("pid", "{}")
    first.result(PATIENCE_S)
    busy = pool.submit("hang", "{}")
    waiting = pool.submit("pid", "{}")
    assert waiting.cancel()
    pool.close()
    with pytest.raises(ToolPoolError, match="closed"):
        busy.result(PATIENCE_S)


def test_a_tool_cannot_write_a_file(make_pool, tmp_path):
    reply = run(make_pool(), "write", {"path": str(tmp_path / "x")})
    assert reply.error == "crashed"
    assert [path.stat().st_size for path in tmp_path.iterdir()] in ([], [0])


@pytest.mark.slow
def test_arguments_that_cannot_travel_are_the_callers_fault_and_the_pool_goes_on(make_pool):
    pool = make_pool()
    with pytest.raises((TypeError, AttributeError), match="pickle"):
        run(pool, "get_price", {"city": lambda: None})
    assert run(pool, "pid").error is None


@pytest.mark.slow
def test_no_tool_process_outlives_its_parent_however_it_ends(database_dir, tmp_path):
    script = textwrap.dedent(
        f"""
        import json, os, signal, sys, time
        from opd.agent.tool_pool import ToolPool
        pool = ToolPool({str(database_dir)!r}, num_processes=1, timeout_s={CALL_TIMEOUT_S}, toolset={TOOLSET!r})
        print(json.loads(pool.submit("pid", "{{}}").result().text)["pid"], flush=True)
        if sys.argv[1] == "busy":
            pool.submit("hang", "{{}}")
            time.sleep(0.2)
        if sys.argv[1] != "exit":
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    for how in ("exit", "idle", "busy"):
        done = subprocess.run([sys.executable, "-c", script, how], capture_output=True, text=True, env=env)
        pid = int(done.stdout)
        assert wait_until(lambda pid=pid: not is_running(pid)), how


def test_a_damaged_database_or_toolset_is_refused_before_any_process_starts(database_dir, tmp_path):
    with pytest.raises(ManifestError, match="holds no manifest"):
        ToolPool(tmp_path, num_processes=1, timeout_s=1)
    with pytest.raises(ImportError):
        ToolPool(database_dir, num_processes=1, timeout_s=1, toolset="no.such.module")
    for options in ({"num_processes": 0, "timeout_s": 1}, {"num_processes": 1, "timeout_s": 0}):
        with pytest.raises(ValueError, match="must be"):
            ToolPool(database_dir, **options)


def test_a_toolset_may_open_a_database_of_its_own(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "stock.json").write_text('{"shoes": 7}')
    toolset = tmp_path / "shop.py"
    toolset.write_text(
        textwrap.dedent(
            """
            import json
            from pathlib import Path
            from pydantic import BaseModel
            from opd.agent import Environment, Tool

            class Product(BaseModel):
                name: str

            def open_database(folder):
                return json.loads((Path(folder) / "stock.json").read_text())

            STOCK = Tool("stock", "Number in stock.", Product, lambda stock, a: {"number": stock[a.name]})
            ENVIRONMENT = Environment(tools={"stock": STOCK}, open_database=open_database)
            """
        )
    )
    with ToolPool(tmp_path / "data", num_processes=1, timeout_s=PATIENCE_S, toolset=str(toolset)) as pool:
        assert json.loads(run(pool, "stock", {"name": "shoes"}, episode_seed=3).text) == {"number": 7}
