"""Places a run's real placement groups and actors, with empty bodies, on Ray nodes whose CPUs and GPUs are logical.

    python -m tests.cluster.placement.program 1x8 2x8

For each size: nodes of exactly the CPUs that are needed, one of which something else holds at first. Prints a JSON line of
what was found.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

# verl's own platform for machines without a device names its logical slots; must be set before verl is imported.
os.environ["VERL_USE_EXTERNAL_MODULES"] = "opd.compat.cpu"

import ray
from omegaconf import OmegaConf
from ray._private.state import actors
from ray._raylet import PlacementGroupID
from ray.cluster_utils import Cluster
from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayWorkerGroup

from opd.cluster.lost import looks, unplaced_parts
from opd.cluster.nodes import wait_for_nodes, working_nodes
from opd.cluster.watch import Watch
from opd.compat.ray_start import patient_start
from opd.errors import NoPlace, TooFewNodes
from opd.experiment import ConvertSpec, parse_tree
from opd.experiment.pipeline import Sizes, sizes_of
from opd.experiment.run_config import RunConfig, RunFacts
from opd.job import start_ranks
from opd.rollout import manager as rollout_manager
from opd.trainer.entry import compose

OBJECT_STORE_BYTES = 80_000_000
PATIENCE_S = 3.0
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
    """A Ray node with logical resources."""
    return {"num_cpus": num_cpus, "num_gpus": num_gpus, "object_store_memory": OBJECT_STORE_BYTES}


def config_of(num_nodes: int, gpus: int) -> Any:
    """A run's config as `opd.launch` composes it."""
    tree = {
        "kind": "opd", "model": {"path": "m"}, "teacher": {"path": "t"}, "actor": {"use_dynamic_bsz": True},
        "trainer": {"nnodes": num_nodes, "gpus_per_node": gpus},
    }  # fmt: skip
    spec = parse_tree(tree).spec
    assert not isinstance(spec, ConvertSpec)
    config = compose(spec, RunFacts(run_id="r", run_dir="r", in_ray_cluster=True))
    OmegaConf.resolve(config)
    return config


def ended_wait(call: Callable[[], Any], sizes: Sizes) -> tuple[str, float]:
    """The error by which a wait without a bound of its own ends, and after how many seconds."""
    start_s = time.monotonic()
    try:
        with Watch(looks(sizes, place_wait_s=PATIENCE_S)[3:4], poll_s=0.2):
            call()
    except NoPlace as error:
        return str(error), time.monotonic() - start_s
    raise AssertionError("everything found a place")


def worker_group(config: Any) -> RayWorkerGroup:
    """The run's placement groups with an empty worker a rank."""
    group = start_ranks(config, EmptyRank, "actor")[1]
    return group


def other_actors(config: Any) -> list[Any]:
    """Rollout workers and rollout servers by the options of those who start them, without bodies."""
    rollout_manager.RolloutActor = ray.remote(Empty)
    rollouts = rollout_manager.RolloutManager(config, None)._actors
    nodes = working_nodes()
    num_servers = config.trainer.nnodes * config.trainer.n_gpus_per_node
    # As verl starts vLLM's (test_verl_s_facts holds that): bound to the node of their ranks, no resources named.
    servers = [
        ray.remote(EmptyServer)
        .options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(nodes[rank % len(nodes)], soft=False),
            max_concurrency=1000,
        )
        .remote()
        for rank in range(num_servers)
    ]
    return [*rollouts, *servers]


def all_up(handles: list[Any]) -> int:
    return sum(ray.get([handle.is_up.remote() for handle in handles], timeout=READY_S))


def held_cpus() -> list[Any]:
    """Something else that holds one CPU of each node."""
    held = [
        ray.remote(num_cpus=1)(Empty)
        .options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
        .remote()
        for node in working_nodes()
    ]
    all_up(held)
    return held


def remove_groups() -> None:
    """The end of every placement group, ready or not, with the actors in it."""
    for key, group in placement_group_table().items():
        if group["state"] != "REMOVED":
            remove_placement_group(PlacementGroup(PlacementGroupID.from_hex(key)))
    until_s = time.monotonic() + READY_S
    while ray.available_resources().get("GPU") != ray.cluster_resources()["GPU"] and time.monotonic() < until_s:
        time.sleep(0.2)  # verl counts the free devices once and fails


def wait_until_ended() -> None:
    """Until every actor is gone, and with it its name."""
    until_s = time.monotonic() + READY_S
    while any(actor["State"] != "DEAD" for actor in actors().values()) and time.monotonic() < until_s:
        time.sleep(0.2)


def play(cluster: Cluster, num_nodes: int, gpus: int) -> dict[str, Any]:
    """One size, first with one CPU less on each node, then with all of them."""
    config = config_of(num_nodes, gpus)
    sizes = sizes_of(RunConfig.of(config).spec)
    cpus = sizes.node_cpus
    added = [cluster.add_node(**node_options(cpus, gpus)) for _ in range(num_nodes)]
    cluster.wait_for_nodes()
    found: dict[str, Any] = {"cpus": cpus}
    held = held_cpus()
    try:
        wait_for_nodes(sizes, timeout_s=2.0)
    except TooFewNodes as error:
        found["refused"] = str(error)
    found["group"], found["group_s"] = ended_wait(lambda: worker_group(config), sizes)
    remove_groups()
    for other in held:
        ray.kill(other)
    group = worker_group(config)
    rest = other_actors(config)
    found["ranks"], found["others"] = sum(group.is_up()), all_up(rest)
    found["unplaced"] = sorted(unplaced_parts().values())
    found["free"] = ray.available_resources().get("CPU", 0.0)
    for handle in [*group.workers, *rest]:
        ray.kill(handle)
    remove_groups()
    wait_until_ended()
    for node in added:
        cluster.remove_node(node)
    return found


def main() -> None:
    """Play the sizes of the command line on one head, which offers nothing."""
    # A raylet ends where its agent is not up in 15 s, most of which the agent's dashboard takes on a busy machine.
    ray._private.utils.get_dashboard_dependency_error = lambda: ImportError("no dashboard is needed")
    with patient_start():
        cluster = Cluster(initialize_head=True, head_node_args={**node_options(0, 0), "include_dashboard": False})
        ray.init(address=cluster.address, log_to_driver=False)
        for size in sys.argv[1:]:
            num_nodes, gpus = map(int, size.split("x"))
            print(json.dumps({"size": size, **play(cluster, num_nodes, gpus)}), flush=True)
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
