"""A process that has another forked from a fork server, in the way of vLLM's engine, and tells of it in a line: `engine.py`; `engine.py nothing`: whether it may."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import sys
import time
from multiprocessing import forkserver
from typing import Any

from opd.compat import vllm_engine


class Unpickled:
    """Tells the environment in which it was unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.getenv, ("OPD_TEST_VALUE", "none")


def forked(writer: Any, then: str) -> None:
    """The child: it lives on."""
    writer.send({"pid": os.getpid(), "parent": os.getppid(), "value": os.getenv("OPD_TEST_VALUE"), "then": then})
    time.sleep(600)


class _First:
    node_rank = 0


def main() -> None:
    os.environ["OPD_TEST_VALUE"] = "begun"
    if sys.argv[1:] == ["nothing"]:
        vllm_engine._IMPORTS = "tests.compat.vllm_start.imports_without_vllm"
        vllm_engine.server_of(_First)()
        print(json.dumps({"forks": asyncio.run(vllm_engine._forks())}), flush=True)
        return
    forkserver.set_forkserver_preload([])
    forkserver.ensure_running()
    os.environ["OPD_TEST_VALUE"] = "launched"
    reader, writer = multiprocessing.Pipe(duplex=False)
    child = vllm_engine._Context().Process(target=forked, args=(writer, Unpickled()))
    child.start()
    print(json.dumps(reader.recv()), flush=True)
    sys.stdin.readline()
    child.terminate()
    child.join()
    print(json.dumps({"exitcode": child.exitcode}), flush=True)


if __name__ == "__main__":
    main()
