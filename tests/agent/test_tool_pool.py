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
from tests.agent import book
from tests.processes import is_running

from opd.agent.tool_pool import ToolPool, ToolPoolError

TOOLSET = str(Path(__file__).with_name("misbehaving_tools.py"))
PATIENCE_S = 60.0
"""A deadline for quick things: only a hang can reach it."""


@pytest.fixture
def make_pool(tmp_path_factory):
    pools = []
    folder = tmp_path_factory.mktemp("book")
    book.write(folder)

    def make(*, num_processes: int = 1, timeout_s: float = PATIENCE_S) -> ToolPool:
        pools.append(ToolPool(folder, num_processes=num_processes, timeout_s=timeout_s, toolset=TOOLSET))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def run(pool: ToolPool, name: str, arguments=None):
    return asyncio.run(pool.call(name, arguments or {}))


def pid_of(pool: ToolPool) -> int:
    return json.loads(run(pool, "pid").text)["pid"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments", "error", "said"),
    [
        ("look_up", {"name": 1}, "bad_arguments", "name = 1"),
        ("raise", {}, "crashed", "raise failed (RuntimeError)"),
        ("not_json", {}, "crashed", "not_json failed (TypeError)"),
        ("eat", {}, "crashed", "eat failed (MemoryError)"),
    ],
)
def test_a_failed_call_is_an_error_to_read_and_leaves_the_process_alone(make_pool, name, arguments, error, said):
    pool = make_pool()
    pid = pid_of(pool)
    reply = run(pool, name, arguments)
    body = json.loads(reply.text)
    assert reply.error == body["error"] == error
    assert said in body["message"]
    assert pid_of(pool) == pid


def test_a_hung_call_holds_up_its_own_process_and_nothing_else(make_pool):
    pool = make_pool(num_processes=2)

    async def conversation():
        hung = asyncio.create_task(pool.call("hang", {}))
        await asyncio.sleep(0)
        replies = await asyncio.gather(*(pool.call("pid", {}) for _ in range(50)))
        assert not hung.done()
        hung.cancel()
        return replies

    replies = asyncio.run(conversation())
    assert {reply.error for reply in replies} == {None}
    assert len({reply.text for reply in replies}) == 1


def test_a_call_cancelled_before_its_turn_is_never_run_and_one_under_way_ends_with_the_pool(make_pool):
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
@pytest.mark.parametrize("how", ["exit", "idle", "busy"])
def test_no_tool_process_outlives_its_parent(tmp_path, how):
    book.write(tmp_path)
    script = textwrap.dedent(
        f"""
        import asyncio, json, os, signal, sys, threading, time
        from opd.agent.tool_pool import ToolPool
        pool = ToolPool({str(tmp_path)!r}, num_processes=1, timeout_s=6.0, toolset={TOOLSET!r})
        print(json.loads(asyncio.run(pool.call("pid", {{}})).text)["pid"], flush=True)
        if sys.argv[1] == "busy":
            threading.Thread(target=asyncio.run, args=[pool.call("hang", {{}})], daemon=True).start()
            time.sleep(0.2)
        if sys.argv[1] != "exit":
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", script, how], capture_output=True, text=True, env=env, check=False)
    deadline = time.monotonic() + PATIENCE_S
    while is_running(int(done.stdout)):
        assert time.monotonic() < deadline, "the tool process outlives its parent"
        time.sleep(0.02)


def test_a_wrong_toolset_is_rejected_before_any_process_starts(tmp_path):
    with pytest.raises(ImportError):
        ToolPool(tmp_path, num_processes=1, timeout_s=1, toolset="no.such.module")
