"""Places a run's real placement groups and actors, with empty bodies, on Ray nodes whose CPUs and GPUs are logical.

    python -m tests.cluster.placement.program NODES GPUS

The nodes have exactly the CPUs that are needed, one of which something else holds at first. Prints a JSON line.
"""

import json
import os
import sys
from typing import Any

# verl's own platform for machines without a device names its logical slots; must be set before verl is imported.
os.environ["VERL_USE_EXTERNAL_MODULES"] = "opd.compat.cpu"

import ray
from omegaconf import OmegaConf
from ray._raylet import PlacementGroupID
from ray.cluster_utils import Cluster
from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register

from opd.cluster.lost import looks, watching
from opd.cluster.nodes import wait_for_nodes, working_nodes
from opd.compat.ray_start import wait_longer
from opd.errors import TooFewNodes
from opd.experiment import ConvertSpec, parse_tree
from opd.experiment.pipeline import sizes_of
from opd.experiment.run_config import RunConfig, RunFacts
from opd.job import start_ranks
from opd.rollout import manager as rollout_manager
from opd.trainer.entry import compose

READY_S = 300.0


class Empty:
    """The body of every actor: none, so that a process imports nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def is_up(self) -> bool:
        return True


class EmptyRank(Worker):
    """The body of a rank."""

    def __init__(self, **_: Any) -> None:
        super().__init__()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def is_up(self) -> bool:
        return True


class EmptyServer:
    """The body of a rollout server: verl's has coroutines, for which `max_concurrency` makes no threads."""

    async def is_up(self) -> bool:
        return True


def node_options(num_cpus: int, num_gpus: int) -> dict[str, Any]:
    """Return a Ray node with logical resources."""
    return {"num_cpus": num_cpus, "num_gpus": num_gpus, "object_store_memory": 80_000_000}


def config_of(num_nodes: int, gpus: int) -> Any:
    """Return a run's config as `opd.launch` composes it."""
    tree = {
        "kind": "opd", "model": {"path": "m"}, "teacher": {"path": "t"}, "actor": {"use_dynamic_bsz": True},
        "trainer": {"nnodes": num_nodes, "gpus_per_node": gpus},
    }  # fmt: skip
    spec = parse_tree(tree).spec
    assert not isinstance(spec, ConvertSpec)
    config = compose(spec, RunFacts(run_id="r", run_dir="r", in_ray_cluster=True))
    OmegaConf.resolve(config)
    return config


def on(node: str, actor: type, **options: Any) -> Any:
    """Start an actor bound to a node."""
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(actor).options(scheduling_strategy=there, **options).remote()


def other_actors(config: Any) -> list[Any]:
    """Start rollout workers and rollout servers by the options of those who start them, without bodies."""
    rollout_manager.RolloutWorker = Empty
    rollouts = rollout_manager.RolloutManager(config, None)._actors
    nodes = working_nodes()
    num_servers = config.trainer.nnodes * config.trainer.n_gpus_per_node
    # As verl starts vLLM's (tests/cluster/test_reservations.py): bound to the node of their ranks, no resources named.
    servers = [on(nodes[rank % len(nodes)], EmptyServer, max_concurrency=1000) for rank in range(num_servers)]
    return [*rollouts, *servers]


def all_up(handles: list[Any]) -> int:
    return sum(ray.get([handle.is_up.remote() for handle in handles], timeout=READY_S))


def main(num_nodes: int, gpus: int) -> None:
    """Play one size on a head that offers nothing, first with one CPU less on each node, then with all of them."""
    # A raylet ends where its agent is not up in 15 s, most of which the agent's dashboard takes on a busy machine.
    ray._private.utils.get_dashboard_dependency_error = lambda: ImportError("no dashboard is needed")
    wait_longer()
    cluster = Cluster(initialize_head=True, head_node_args={**node_options(0, 0), "include_dashboard": False})
    ray.init(address=cluster.address, log_to_driver=False)
    config = config_of(num_nodes, gpus)
    sizes = sizes_of(RunConfig.of(config).spec)
    for _ in range(num_nodes):
        cluster.add_node(**node_options(sizes.node_cpus, gpus))
    cluster.wait_for_nodes()
    found: dict[str, Any] = {"cpus": sizes.node_cpus}
    held = [on(node, Empty, num_cpus=1) for node in working_nodes()]
    all_up(held)
    try:
        wait_for_nodes(sizes, timeout_s=2.0)
    except TooFewNodes as error:
        found["refused"] = str(error)
    try:
        with watching(looks(sizes, place_wait_s=3.0)[3:4], poll_s=0.2):
            start_ranks(config, EmptyRank, "actor")
    except TooFewNodes as error:
        found["unplaced"] = str(error)
    for key, waiting in placement_group_table().items():
        if waiting["state"] != "REMOVED":
            remove_placement_group(PlacementGroup(PlacementGroupID.from_hex(key)))
    for other in held:
        ray.kill(other)
    wait_for_nodes(sizes, timeout_s=READY_S)
    group = start_ranks(config, EmptyRank, "actor")[1]
    found["others"] = all_up(other_actors(config))
    found["ranks"] = sum(group.is_up())
    found["free"] = ray.available_resources().get("CPU", 0.0)
    print(json.dumps(found), flush=True)
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
