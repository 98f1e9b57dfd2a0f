"""The Ray nodes of a run: the wait for their devices and CPUs, and the models on them."""

import time
from typing import Any

import ray
from ray._private.state import available_resources_per_node  # what verl's own check reads
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from opd.errors import TooFewNodes
from opd.experiment.pipeline import Sizes
from opd.inputs.fetch import CACHE_VARIABLE, local_copy

NODE_WAIT_S = 900.0  # for pods to be scheduled again and to pull their image
# For the only node of an embedded Ray to be registered.
ALONE_WAIT_S = 30.0
POLL_S = 1.0
_MOST_NAMED = 8


def wait_for_nodes(sizes: Sizes, *, timeout_s: float) -> None:
    """Wait until the Ray nodes have the free devices and CPUs of the run; print the lacking ones.

    Workers may still have to find a new head, and an earlier attempt's processes may still end. verl would fail at once
    without devices, and wait forever without CPUs.

    Raises:
        TooFewNodes: the nodes did not come, or stay too small.
    """
    start_s, said = time.monotonic(), ""
    while lacking := shortage(sizes):
        waited_s = time.monotonic() - start_s
        if waited_s >= timeout_s:
            raise TooFewNodes(f"{lacking} after {waited_s:.0f} s")
        if lacking != said:
            print(f"waiting for nodes, free now: {lacking}", flush=True)
            said = lacking
        time.sleep(POLL_S)


def shortage(sizes: Sizes) -> str:
    """Return what is lacking for the run, with each node that is too small; empty where all of it finds a place.

    A node's ranks are one placement group, which takes a single node.
    """
    places, small, free = 0, list[str](), available_resources_per_node()
    for node in _working():
        left = free.get(node["NodeID"], {})
        cpus, gpus = left.get("CPU", 0.0), left.get("GPU", left.get("NPU", 0.0))
        room = int(min(gpus // sizes.gpus_per_node, cpus // sizes.node_cpus))
        places += room
        if not room:
            small.append(f"{node['NodeManagerAddress']} ({node['NodeID'][:6]}) {gpus:g} GPUs, {cpus:g} CPUs")
    if places >= sizes.num_nodes:
        return ""
    listed = "; ".join(small[:_MOST_NAMED]) + (f"; and {len(small) - _MOST_NAMED} more" if small[_MOST_NAMED:] else "")
    return f"{places} of {sizes.num_nodes} nodes with {needed(sizes)}; too small: {listed or 'none is there'}"


def needed(sizes: Sizes) -> str:
    """Return what each node that trains needs, in words."""
    devices = f"{sizes.gpus_per_node} {'GPU' if sizes.gpus_per_node == 1 else 'GPUs'} and "
    return f"{devices if sizes.device == 'cuda' else ''}{sizes.node_cpus} CPUs for its ranks"


def fetch_on_nodes(models: dict[str, str]) -> None:
    """Make every working node fetch and verify the models that this process fetched; quick with a shared cache.

    Args:
        models: local folder by store URL.

    Raises:
        FetchError, StoreError: as on this node.
        RuntimeError: a node has its cache elsewhere, so that one path cannot name the model on all nodes.
    """
    fetched = ray.remote(num_cpus=0)(local_copy)  # also on a node with busy CPUs
    here = ray.get_runtime_context().get_node_id()
    others = [NodeAffinitySchedulingStrategy(node, soft=False) for node in working_nodes() if node != here]
    asked = {
        (url, there.node_id): fetched.options(scheduling_strategy=there).remote(url)
        for url in models
        for there in others
    }
    for (url, node), answer in asked.items():
        if (found := ray.get(answer)) != models[url]:
            raise RuntimeError(
                f"{url} is at {found} on node {node}, here at {models[url]}: set {CACHE_VARIABLE} alike on both"
            )


def working_nodes() -> list[str]:
    """Return ids of the living Ray nodes that offer CPUs, ordered by address."""
    return [node["NodeID"] for node in _working()]


def _working() -> list[dict[str, Any]]:
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0]
    return sorted(nodes, key=lambda node: (node["NodeManagerAddress"], node["NodeID"]))
