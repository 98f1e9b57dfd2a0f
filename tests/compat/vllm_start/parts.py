"""Bodies of a start's actors: servers that report their settings, and a rank's view of them."""

from __future__ import annotations

import os
import time
from typing import Any

import ray

TIMEOUT_S = 400.0


class Server:
    """In the place of verl's `vLLMHttpServer`: its constructor's arguments, and the methods that a launch calls."""

    def __init__(self, **arguments: Any):
        self._told = arguments
        self.node_rank = arguments["node_rank"]
        self._launched_s: list[float] = []

    async def pid(self) -> int:
        return os.getpid()

    async def get_master_address(self) -> tuple[str, int, int]:
        return "127.0.0.1", 1, 2

    async def launch_server(self, **_: Any) -> None:
        self._launched_s.append(time.monotonic())

    async def get_server_address(self) -> tuple[str, int]:
        return "127.0.0.1", 3

    async def facts(self) -> dict[str, Any]:
        keys = ("replica_rank", "node_rank", "gpus_per_node", "nnodes", "cuda_visible_devices")
        return {key: self._told[key] for key in keys} | {
            "mode": self._told["rollout_mode"].value,
            "model": self._told["model_config"]["path"],
            "devices_of_ranks": [await worker.actor_rollout_ref_device.remote() for worker in self._told["workers"]],
            "launched_s": self._launched_s,
            "environment": os.environ.get("OF_SERVERS"),
        }


def pid_of_server(name: str) -> int:
    """Return the facts of the server of that name, once it is up."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while True:
        try:
            pid: int = ray.get(ray.get_actor(name).pid.remote(), timeout=TIMEOUT_S)
            return pid
        except ValueError:  # no actor has that name
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.05)
