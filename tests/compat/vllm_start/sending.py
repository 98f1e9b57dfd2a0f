"""A rank sends weights to vLLM: verl's own sending, and a body of ours that takes them.

    python -m tests.compat.vllm_start.sending broken ipc:///tmp/weights.sock

`taken`: every part is answered; `dead`: no server takes them; `broken`: who takes them fails at the second part; `silent`: ends there
without an answer. Prints a line of JSON: "taken", or the error.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import importlib
import json
import os
import sys
import threading
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

os.environ["VERL_USE_EXTERNAL_MODULES"] = "opd.compat.cpu"  # must be set before verl is imported

import torch
import zmq
from tests.compat.vllm_start import no_vllm

NUM_PARTS = 2  # the buffer's name, and one part


class _Call:
    """Ray's reference to the call that takes the weights."""

    def __init__(self, taking: concurrent.futures.Future[None]):
        self._taking = taking

    def future(self) -> concurrent.futures.Future[None]:
        return self._taking

    def __await__(self) -> Generator[Any, None, None]:
        return asyncio.wrap_future(self._taking).__await__()


def _take(how: str, handle: str, taking: concurrent.futures.Future[None]) -> None:
    socket = zmq.Context.instance().socket(zmq.REP)
    socket.connect(handle)
    for _ in range(NUM_PARTS if how == "taken" else 1):
        socket.recv()
        socket.send(b"")
    if how == "broken":
        taking.set_exception(ValueError("no room for these weights"))
    else:
        taking.set_result(None)


async def _nothing(*_: Any) -> None:
    pass


def _adapter(handle: str, taking: concurrent.futures.Future[None]) -> Any:
    """A rank's view of a server in another process."""
    no_vllm.install()
    importlib.import_module("opd.update.opd_worker")  # a rank's, which names its adapter
    from verl.workers.rollout.base import get_rollout_class

    adapter = object.__new__(get_rollout_class("vllm"))
    server = SimpleNamespace(
        collective_rpc=SimpleNamespace(remote=lambda *_, **__: _Call(taking)),
        clear_kv_cache=SimpleNamespace(remote=_nothing),
        set_global_steps=SimpleNamespace(remote=_nothing),
    )
    sizes = SimpleNamespace(update_weights_bucket_megabytes=1)
    vars(adapter).update(
        config=SimpleNamespace(checkpoint_engine=sizes), zmq_handle=handle, use_shm=True,
        replica_rank=0, rollout_rank=1, _has_server=True, server_handle=server,
    )  # fmt: skip
    return adapter


def main(how: str, handle: str) -> None:
    taking: concurrent.futures.Future[None] = concurrent.futures.Future()
    if how == "dead":
        taking.set_exception(ValueError("the engine is gone"))
    else:
        threading.Thread(target=_take, args=(how, handle, taking), daemon=True).start()
    try:
        asyncio.run(_adapter(handle, taking).update_weights(iter([("w", torch.ones(4))]), global_steps=1))
        said = "taken"
    except (ValueError, RuntimeError) as error:
        said = f"{type(error).__name__}: {error}"
    print(json.dumps(said), flush=True)
    os._exit(0)  # zmq would wait for who reads the words of a closed socket


if __name__ == "__main__":
    main(*sys.argv[1:])
