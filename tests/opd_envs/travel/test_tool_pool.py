"""The tool pool: every call is answered, other calls continue, and no process stays."""

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


def run(pool: ToolPool, name: str, arguments=None, **options):
    return asyncio.run(pool.call(name, arguments or {}, **options))


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
        ("get_price", {"city": 1}, "bad_arguments", "name is missing"),
        ("raise", {}, "crashed", "raise failed (RuntimeError)"),
        ("not_json", {}, "crashed", "not_json failed (TypeError)"),
        ("eat", {}, "crashed", "eat failed (MemoryError)"),
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
        hung = asyncio.create_task(pool.call("hang", {}))
        await asyncio.sleep(0)
        replies = [await pool.call("pid", {}) for _ in range(50)]
        assert not hung.done()
        hung.cancel()
        return replies

    replies = asyncio.run(conversation())
    assert all(reply.error is None for reply in replies)
    assert len({reply.text for reply in replies}) == 1


def test_64_conversations_at_once_are_all_answered_without_a_lock_error(make_pool, database):
    pool = make_pool(num_processes=2)
    city = database.cities("en")[0]
    place = database.places(city, "restaurant")[0]

    async def conversation(seed: int):
        reply = await pool.call("get_price", {"city": city.name, "name": place.name}, episode_seed=seed)
        return json.loads(reply.text) == {"price": database.in_episode(seed).place(city, place.name).price}

    async def load():
        return await asyncio.gather(*(conversation(seed) for seed in range(64)))

    assert all(asyncio.run(load()))


def test_a_call_cancelled_before_its_turn_is_never_run_and_one_under_way_ends_with_the_pool(make_pool, tmp_path):
    pool = make_pool()
    pid_of(pool)

    async def conversation():
        busy, waiting = (asyncio.create_task(pool.call("hang", {})) for _ in range(2))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.to_thread(pool.close)
        with pytest.raises(ToolPoolError, match="the tool pool is closed"):
            await busy

    asyncio.run(conversation())


@pytest.mark.parametrize("name", ["hang", "hang_in_c", "die"])
def test_a_call_that_never_ends_or_dies_is_answered_and_its_process_replaced(make_pool, name):
    pool = make_pool(timeout_s=1.0)
    pid = pid_of(pool)
    reply = run(pool, name)
    expected = ("crashed", "failed: its process died") if name == "die" else ("timeout", "gave no answer in 1 s")
    assert reply.error == json.loads(reply.text)["error"] == expected[0]
    assert f"{name} {expected[1]}; try other arguments or another tool" in reply.text
    assert not is_running(pid)
    assert pid_of(pool) != pid


def test_a_tool_cannot_write_a_file(make_pool, tmp_path):
    reply = run(make_pool(), "write", {"path": str(tmp_path / "x")})
    assert reply.error == "crashed"
    assert [path.stat().st_size for path in tmp_path.iterdir()] in ([], [0])


@pytest.mark.slow
def test_no_tool_process_outlives_its_parent_however_it_ends(database_dir, tmp_path):
    script = textwrap.dedent(
        f"""
        import asyncio, json, os, signal, sys, threading, time
        from opd.agent.tool_pool import ToolPool
        pool = ToolPool({str(database_dir)!r}, num_processes=1, timeout_s={CALL_TIMEOUT_S}, toolset={TOOLSET!r})
        print(json.loads(asyncio.run(pool.call("pid", {{}})).text)["pid"], flush=True)
        if sys.argv[1] == "busy":
            threading.Thread(target=asyncio.run, args=[pool.call("hang", {{}})], daemon=True).start()
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
