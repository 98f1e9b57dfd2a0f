"""The Ray nodes that a run works on: waited for, told apart from a head that offers nothing, given the models."""

from __future__ import annotations

import time

import ray
from omegaconf import DictConfig
from ray._private.state import available_resources_per_node  # what verl's own check reads
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from opd.fetch import CACHE_VARIABLE, local_copy
from opd.training.errors import TooFewNodes

# As long as pods may take to be scheduled again and to pull their image.
DEVICE_WAIT_S = 900.0
DEVICE_POLL_S = 1.0


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
