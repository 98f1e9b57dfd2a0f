"""The Ray nodes of a run: the wait for them, their offers, and the models on them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ray
from ray._private.state import available_resources_per_node  # what verl's own check reads
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from opd.cluster.places import Offer, has_devices, shortage
from opd.errors import TooFewNodes
from opd.experiment.pipeline import Sizes
from opd.inputs.fetch import CACHE_VARIABLE, local_copy

# For pods to be scheduled again and to pull their image.
NODE_WAIT_S = 900.0
# After the last node has joined, where the devices suffice and the CPUs do not.
SETTLE_S = 60.0
# For the only node of an embedded Ray to be registered.
ALONE_WAIT_S = 30.0
POLL_S = 1.0
FIX = (
    "Give the nodes more CPUs (cluster.worker.requests.cpu; `ray start --num-cpus`), lower trainer.nnodes or "
    "trainer.gpus_per_node, or see why nodes are missing (their pods)"
)


def wait_for_nodes(
    sizes: Sizes, *, is_alone: bool = False, timeout_s: float = NODE_WAIT_S, settle_s: float = SETTLE_S
) -> None:
    """Wait until the Ray nodes have the free devices and CPUs of the run; print the lacking ones.

    Workers may still have to find a new head, and an earlier attempt's processes may still end. verl would fail at once
    without devices, and wait forever without CPUs.

    Args:
        is_alone: this process has started Ray, so no other node can join.

    Raises:
        TooFewNodes: the nodes did not come; or, `settle_s` after the last one came, they are too small.
    """
    if is_alone:
        timeout_s, settle_s = min(timeout_s, ALONE_WAIT_S), 0.0
    start_s = joined_s = time.monotonic()
    known: list[str] = []
    said = ""
    while True:
        whole, free = offers()
        lacking = shortage(sizes, free)
        if not lacking:
            return
        now_s = time.monotonic()
        if (nodes := [offer.node for offer in whole]) != known:
            known, joined_s = nodes, now_s
        too_small = shortage(sizes, whole) if has_devices(sizes, whole) else ""
        if now_s - start_s >= timeout_s or (too_small and now_s - joined_s >= settle_s):
            raise TooFewNodes(f"{too_small or lacking} after {now_s - start_s:.0f} s. {FIX}")
        if lacking != said:
            print(f"waiting for nodes, free now: {lacking}", flush=True)
            said = lacking
        time.sleep(POLL_S)


def offers() -> tuple[list[Offer], list[Offer]]:
    """Return all resources of the working nodes, and the free ones."""
    nodes = [(f"{node['NodeManagerAddress']} ({node['NodeID'][:6]})", node) for node in _working()]
    free = available_resources_per_node()
    return (
        [Offer.of(name, node["Resources"]) for name, node in nodes],
        [Offer.of(name, free.get(node["NodeID"], {})) for name, node in nodes],
    )


def fetch_on_nodes(models: dict[str, str]) -> None:
    """Make every working node fetch and verify the models that this process fetched; quick with a shared cache.

    Args:
        models: local folder by store URL.

    Raises:
        FetchError, StoreError: as on this node.
        RuntimeError: a node has its cache elsewhere, so that one path cannot name the model on all nodes.
    """
    if not models:
        return
    here = ray.get_runtime_context().get_node_id()
    others = [node for node in working_nodes() if node != here]
    asked = {(url, node): on_node(node, local_copy, url) for url in models for node in others}
    for (url, node), answer in asked.items():
        if (found := ray.get(answer)) != models[url]:
            raise RuntimeError(
                f"{url} is at {found} on node {node}, here at {models[url]}: set {CACHE_VARIABLE} alike on both"
            )


def on_node(node: str, function: Callable[..., Any], *arguments: Any) -> ray.ObjectRef:
    """Call the function on this node, also on a node with busy CPUs."""
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(num_cpus=0)(function).options(scheduling_strategy=there).remote(*arguments)


def working_nodes() -> list[str]:
    """Return ids of the living Ray nodes that offer CPUs, ordered by address."""
    return [node["NodeID"] for node in _working()]


def _working() -> list[dict[str, Any]]:
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0]
    return sorted(nodes, key=lambda node: (node["NodeManagerAddress"], node["NodeID"]))
