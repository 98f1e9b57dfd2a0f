"""A process with a server whose engine is forked: `engine_program.py HOW`; it tells its processes in a line, and then whether it is answered for each line it reads.

HOW is `forked`, or what keeps the engine from it: `import` (the fork server could not import vLLM), `killed` (it is gone), `threads` (it has some).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from multiprocessing import forkserver
from types import SimpleNamespace
from typing import Any

import psutil
from tests.vllm_cpu.served import Served

from opd.compat import vllm_engine
from opd.data.toy import STUDENT_DIR

IMPORTS = {"import": "opd.compat.no_such_module", "threads": "tests.vllm_cpu.imports_with_thread"}


class _First(Served):
    """The server of a replica's first node, as verl numbers them."""

    node_rank = 0


class Told:
    """Of vLLM's worker, which the engine's process starts with its own environment."""

    def environment(self) -> dict[str, str]:
        return {key: value for key, value in os.environ.items() if key.startswith("OPD_TEST_")}


async def _play(how: str) -> None:
    vllm_engine._IMPORTS = IMPORTS.get(how, vllm_engine._IMPORTS)
    os.environ |= {"OPD_TEST_CHANGED": "begun", "OPD_TEST_GONE": "1"}
    server = vllm_engine.server_of(_First)()
    os.environ["OPD_TEST_CHANGED"] = "launched"
    del os.environ["OPD_TEST_GONE"]
    if how == "killed":
        forkserver.set_forkserver_preload(["opd.compat.no_such_module"])  # of the one that is started in its place
        psutil.Process(forkserver._forkserver._forkserver_pid).kill()
    args = {"model": str(STUDENT_DIR), "enforce_eager": True, "max_model_len": 128, "numa_bind": False}
    await server.run_server(SimpleNamespace(worker_extension_cls="tests.vllm_cpu.engine_program.Told", **args))
    [engine] = server.engine.engine_core.resources.engine_manager.processes
    [worker] = (one for one in psutil.Process(engine.pid).children() if "Worker" in one.name())
    parent = psutil.Process(engine.pid).parent()
    told = {
        "engine": engine.pid,
        "worker": worker.pid,
        "name": psutil.Process(engine.pid).name(),
        "parent": parent.pid,
        "parent_s_program": " ".join(parent.cmdline()),
        "environment": (await server.engine.collective_rpc("environment"))[0],
    }
    print(json.dumps(told), flush=True)
    for _ in iter(sys.stdin.readline, ""):
        print(json.dumps({"answer": await _answered(server)}), flush=True)


async def _answered(server: Any) -> str:
    from vllm.v1.engine.exceptions import EngineDeadError

    try:
        [output] = (await server.outputs("asked", [5, 6, 7], max_tokens=1))[-1].outputs
    except EngineDeadError as error:
        return type(error).__name__
    return f"{len(output.token_ids)} token"


if __name__ == "__main__":
    asyncio.run(_play(sys.argv[1]))
