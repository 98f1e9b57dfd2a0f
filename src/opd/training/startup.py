"""Start-up side by side: Ray while verl is imported, the queue and the rollout servers while the worker loads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import ray
from omegaconf import DictConfig
from ray._private.state import available_resources_per_node  # what verl's own check reads
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from opd.fetch import CACHE_VARIABLE, local_copy
from opd.training.errors import TooFewNodes

T = TypeVar("T")
# As long as pods may take to be scheduled again and to pull their image.
DEVICE_WAIT_S = 900.0
DEVICE_POLL_S = 1.0


class Background(Generic[T]):
    """A call running in a thread; `result` waits for it and raises what it raised."""

    def __init__(self, call: Callable[[], T], name: str):
        self._call = call
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value = self._call()
        except BaseException as error:  # noqa: BLE001 - handed to whoever asks for the result
            self._error = error

    def wait(self) -> None:
        """Until the call has ended, however it ended."""
        self._thread.join()

    def result(self) -> T:
        self.wait()
        if self._error is not None:
            raise self._error
        return self._value


def start_cpu_servers(config: DictConfig) -> list[Any]:
    """Start the CPU rollout servers before verl asks for them; their handles, which must be kept alive until it does.

    They are spread over the nodes that work: a server asks for no resources, and Ray would as well put it on a head that
    offers none (a soft affinity included, which Ray 2.60 does not follow for such actors).
    """
    from opd.cpu.replica import server_name, start_server

    role = config.actor_rollout_ref
    world = config.trainer.nnodes * config.trainer.n_gpus_per_node
    replicas = world // role.rollout.tensor_model_parallel_size
    nodes = working_nodes()

    def start(rank: int) -> Any:
        node = NodeAffinitySchedulingStrategy(nodes[rank % len(nodes)], soft=False)
        return start_server(role.rollout, role.model, server_name(rank), rank, scheduling_strategy=node)

    return [start(rank) for rank in range(replicas)]


def wait_for_devices(config: DictConfig, *, timeout_s: float = DEVICE_WAIT_S) -> None:
    """Until `trainer.nnodes` nodes have `trainer.n_gpus_per_node` free devices each; says what it waits for.

    A job may be there before its workers are (a new head, whose workers still have to find it), and an earlier attempt's
    processes may still be leaving: verl would fail at once.

    Raises:
        TooFewNodes: they did not come.
    """
    nnodes, per_node = int(config.trainer.nnodes), int(config.trainer.n_gpus_per_node)
    until_s = time.monotonic() + timeout_s
    said = None
    while True:
        free = [int(found.get("GPU", found.get("NPU", 0))) for found in available_resources_per_node().values()]
        fit = sum(count >= per_node for count in free)
        if fit >= nnodes:
            return
        where = f"{fit} of {nnodes} nodes with {per_node} free device{'s' if per_node > 1 else ''} (free now: {sorted(free)})"
        if time.monotonic() >= until_s:
            raise TooFewNodes(
                f"{where} after {timeout_s:g} s: trainer.nnodes and trainer.gpus_per_node ask for more than this Ray "
                "cluster has, or its workers do not start (see their pods)"
            )
        if where != said:
            print(f"waiting for {where}", flush=True)
            said = where
        time.sleep(DEVICE_POLL_S)


def fetch_on_nodes(models: dict[str, str]) -> None:
    """Have every node that works fetch and verify the models that this process fetched; quick where they share the cache.

    Args:
        models: local folder by store URL.

    Raises:
        FetchError, StoreError: as on this node.
        RuntimeError: a node keeps its cache elsewhere, so that one path cannot name the model on all.
    """
    if not models:
        return
    here = ray.get_runtime_context().get_node_id()
    others = [node for node in working_nodes() if node != here]
    fetch = ray.remote(num_cpus=0)(local_copy)
    asked = {
        (url, node): fetch.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(url)
        for url in models
        for node in others
    }
    for (url, node), answer in asked.items():
        if (found := ray.get(answer)) != models[url]:
            raise RuntimeError(
                f"{url} is at {found} on node {node}, here at {models[url]}: set {CACHE_VARIABLE} alike on both"
            )


def working_nodes() -> list[str]:
    """Ids of the living Ray nodes that offer CPUs, ordered by address; never empty in a cluster that can train."""
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0]
    return [node["NodeID"] for node in sorted(nodes, key=lambda node: (node["NodeManagerAddress"], node["NodeID"]))]
