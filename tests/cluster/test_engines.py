"""A vLLM server whose engine has died is found by its name, also where it answers nothing else any more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

_PROGRAM = """
    import asyncio, json, pathlib, sys, time
    from types import SimpleNamespace
    import ray
    from opd.cluster.lost import Engines
    from opd.compat.ray_start import patient_start
    with patient_start():
        ray.init(address="local", num_cpus=1, include_dashboard=False, object_store_memory=80_000_000, log_to_driver=False)

    class Server:
        async def launch(self, errored):
            self.engine = SimpleNamespace(errored=errored)

        async def take_weights(self):
            await asyncio.Event().wait()  # of an engine that is dead

        async def compile(self, until):
            while not until.exists():
                time.sleep(0.05)

    def server(name):
        return ray.remote(num_cpus=0)(Server).options(name=name).remote()

    def look():
        while not (found := engines.dead()) and engines._asked:  # a slow machine: the answer comes with a later look
            pass
        return found

    found = {}
    engines = Engines()
    found["no server"] = engines.dead()
    one, other, unlike = server("vllm_server_0_0"), server("vllm_server_1_0"), server("opd_server")
    found["not launched"] = engines.dead()
    ray.get([it.launch.remote(False) for it in (one, other, unlike)])
    found["launched"] = engines.dead()
    look()  # so that no answer from before is on its way
    waiting = one.take_weights.remote()
    ray.get([one.launch.remote(True), unlike.launch.remote(True)])
    found["dead"] = [look(), look()]
    looked = pathlib.Path(sys.argv[1])
    busy = other.compile.remote(looked)
    found["beside a busy one"] = look()
    held_up = one.compile.remote(looked)
    found["not answering"] = engines.dead()
    looked.touch()
    ray.get(held_up)
    ray.kill(one)
    while "vllm_server_0_0" in ray.util.list_named_actors():
        time.sleep(0.05)
    ray.get(busy)
    found["ended"] = engines.dead()
    print(json.dumps(found), flush=True)
"""
DEAD = {"vllm_server_0_0": "the engine of vllm_server_0_0: its process is gone"}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    environment = os.environ | {
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    environment.pop("RAY_ADDRESS", None)
    looked = tmp_path_factory.mktemp("engines") / "looked"
    command = [sys.executable, "-c", textwrap.dedent(_PROGRAM), str(looked)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return json.loads(ended.stdout.splitlines()[-1])


pytestmark = pytest.mark.slow


def test_servers_that_are_not_there_or_not_launched_have_no_dead_engine(found):
    assert found["no server"] == found["not launched"] == found["launched"] == {}


def test_a_dead_engine_is_told_while_its_server_waits_for_it(found):
    assert found["dead"] == [DEAD, DEAD]


def test_a_busy_server_keeps_nobody_from_being_asked(found):
    assert found["beside a busy one"] == DEAD


def test_a_dead_engine_stays_told_while_its_server_does_not_answer(found):
    assert found["not answering"] == DEAD


def test_a_server_that_has_ended_is_no_engine_that_is_dead(found):
    assert found["ended"] == {}
