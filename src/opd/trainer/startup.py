"""Start-up side by side: the rollout servers while the worker loads."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from opd.cluster.nodes import working_nodes


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
        return start_server(role.rollout, role.model, server_name(rank), scheduling_strategy=node)

    return [start(rank) for rank in range(replicas)]
