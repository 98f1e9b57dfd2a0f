"""Start-up side by side: the queue and the rollout servers while the worker loads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from omegaconf import DictConfig
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from opd.cluster.nodes import working_nodes

T = TypeVar("T")


class Background(Generic[T]):
    """A call running in a thread; `result` waits for it and raises what it raised."""

    def __init__(self, call: Callable[[], T], name: str):
        self._call = call
        self._value: Any = None
        self._error: BaseException | None = None
        # Not the thread's own end: Python 3.11 takes a thread whose `join` was interrupted for ended.
        self._ended = threading.Event()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        try:
            self._value = self._call()
        except BaseException as error:  # noqa: BLE001 - handed to whoever asks for the result
            self._error = error
        finally:
            self._ended.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until the call has ended, however it ended; False if it has not within the time."""
        return self._ended.wait(timeout_s)

    def result(self) -> T:
        self.wait()
        if self._error is not None:
            raise self._error
        value: T = self._value
        return value


def start_cpu_servers(config: DictConfig) -> list[Any]:
    """Start the CPU rollout servers before verl asks for them; their handles, which must be kept alive until it does.

    They are spread over the nodes that work: a server asks for no resources, and Ray would as well put it on a head that
    offers none (a soft affinity included, which Ray 2.60 does not follow for such actors).
    """
    from opd.rollout.cpu.replica import server_name, start_server

    role = config.actor_rollout_ref
    world = config.trainer.nnodes * config.trainer.n_gpus_per_node
    replicas = world // role.rollout.tensor_model_parallel_size
    nodes = working_nodes()

    def start(rank: int) -> Any:
        node = NodeAffinitySchedulingStrategy(nodes[rank % len(nodes)], soft=False)
        return start_server(role.rollout, role.model, server_name(rank), rank, scheduling_strategy=node)

    return [start(rank) for rank in range(replicas)]
