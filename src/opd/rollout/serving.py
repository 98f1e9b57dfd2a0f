"""Rollout servers, with ranks that train or alone with the model's files; the client that routes requests to them."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import ray
from omegaconf import DictConfig, open_dict
from ray.actor import ActorHandle
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy
from verl.workers.rollout.llm_server import LLMServerClient, LLMServerManager
from verl.workers.rollout.replica import RolloutMode, RolloutReplica, RolloutReplicaRegistry
from verl.workers.rollout.router import DEFAULT_ROUTING_CACHE_SIZE

from opd.cluster.nodes import working_nodes
from opd.compat.vllm_servers import Placed, with_servers
from opd.experiment import EvalSpec
from opd.experiment.run_config import RunConfig

CPU_ROLLOUT, VLLM = "cpu", "vllm"
NO_GPU = "CPU"


class InProcessClient(LLMServerClient):
    """verl's client with its routing rule (sticky by request id, else fewest requests in flight) in this process."""

    def __init__(self, config: DictConfig, servers: dict[str, Any]):
        super().__init__(config, load_balancer_handle=None)
        self._servers = servers
        self._in_flight: Counter[str] = Counter(dict.fromkeys(servers, 0))
        self._sticky: dict[str, str] = {}  # kept between rounds of rows whose prefix their server has in a cache

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        server = self._sticky.get(request_id) or min(self._in_flight, key=lambda name: (self._in_flight[name], name))
        self._sticky[request_id] = server
        if len(self._sticky) > DEFAULT_ROUTING_CACHE_SIZE:
            del self._sticky[next(iter(self._sticky))]
        self._in_flight[server] += 1
        return server, self._servers[server]

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        self._in_flight[server_id] -= 1


class Servers(LLMServerManager):
    """verl's rollout servers next to ranks that train.

    Counters in the processes that ask route the requests: verl 0.9.1 starts an actor for it, whose process imports verl for 5 to 8 s.
    """

    def __init__(self, config: DictConfig, **more: Any) -> None:
        if config.actor_rollout_ref.rollout.name == VLLM:
            keeps = RunConfig.of(config).sampling.rollout.keep_prefixes
            self.rollout_replica_class = with_servers(RolloutReplicaRegistry.get(VLLM), keeps_prefixes=keeps)
        super().__init__(config, **more)

    async def _init_global_load_balancer(self) -> None:
        self.global_load_balancer = None

    def get_client(self, client_cls: type | None = None, **kwargs: Any) -> LLMServerClient:
        """Return the client that asks these servers."""
        return InProcessClient(self.config, dict(zip(self.server_addresses, self.server_handles, strict=True)))


def start_with_models(config: DictConfig, ranks: Any, *, role: str, pool: Any) -> Servers:
    """Have the ranks load their models, and start the run's servers.

    vLLM's begin while the models load: verl 0.9.1 makes their actors afterwards, and each imports vLLM for 15 s first.

    Args:
        ranks: verl's group of workers. role: its name of the models that a rank holds. pool: of the ranks' devices.
    """
    if config.actor_rollout_ref.rollout.name != VLLM:
        ranks.init_model()
        alone: Servers = Servers.create(config=config, worker_group=ranks, rollout_resource_pool=pool)
        return alone
    placed = [Placed(rank) for rank in ranks.workers]
    ray.get([rank.answer for rank in placed])  # before the call to load: a rank takes calls in no order
    loading = ranks.execute_all_async(f"{role}_init_model")  # the name of a colocated worker's method

    async def start() -> Servers:
        group = SimpleNamespace(workers=placed, world_size=len(placed))
        starting = Servers.create(config=config, worker_group=group, rollout_resource_pool=pool)
        servers: Servers = (await asyncio.gather(starting, *loading))[0]  # the first error of both ends the start
        return servers

    return asyncio.run(start())


@dataclass(kw_only=True)
class Serving:
    """Running servers; they end when this object does."""

    client: InProcessClient
    devices: list[str]
    """Name of each GPU; one `CPU` a server without a GPU."""
    places: list[ActorHandle] = field(default_factory=list)
    """Actors that hold the GPUs."""


def start_servers(config: DictConfig) -> Serving:
    """Start servers that load the model's files; they share the run's GPUs, `tensor_model_parallel_size` for each.

    Args:
        config: verl's config of the run, whose `rollout.load_format` this sets.
    """
    spec = RunConfig.of(config).spec
    if isinstance(spec, EvalSpec) and spec.teacher is not None:  # its own server answers
        return Serving(client=InProcessClient(config, {}), devices=[])
    with open_dict(config):
        config.actor_rollout_ref.rollout.load_format = "auto"  # verl's default waits for the trainer's weights
    if cpu_servers := start_cpu_servers(config):
        return Serving(client=InProcessClient(config, cpu_servers), devices=[NO_GPU] * len(cpu_servers))
    places = _places(config.trainer.nnodes, config.trainer.n_gpus_per_node)
    servers = asyncio.run(_launch_vllm(config, places))
    devices = [" or ".join(_gpu_names())] * len(places)
    return Serving(client=InProcessClient(config, servers), devices=devices, places=places)


def start_cpu_servers(config: DictConfig) -> dict[str, Any]:
    """Start the CPU rollout servers, if the run has such; return their handles by name at once, while they build their models.

    They are spread over the nodes that work. A server asks for no resources, so Ray would also put it on a head that offers
    none. Ray 2.60 does not follow a soft affinity for such actors.
    """
    role = config.actor_rollout_ref
    if role.rollout.name != CPU_ROLLOUT:
        return {}
    from opd.rollout.cpu.replica import server_name, start_server

    world = config.trainer.nnodes * config.trainer.n_gpus_per_node
    nodes = working_nodes()

    def start(rank: int) -> Any:
        node = NodeAffinitySchedulingStrategy(nodes[rank % len(nodes)], soft=False)
        return start_server(role.rollout, role.model, server_name(rank), scheduling_strategy=node)

    return {server_name(rank): start(rank) for rank in range(world // role.rollout.tensor_model_parallel_size)}


class _Place:
    """An actor that holds one GPU for a server, to whose processes Ray gives none."""


def _gpu_names() -> list[str]:
    """Return the accelerators of the cluster's nodes by Ray's names, such as `H200`."""
    prefix = "accelerator_type:"
    return [name.removeprefix(prefix) for name in ray.cluster_resources() if name.startswith(prefix)] or ["GPU"]


def _places(num_nodes: int, gpus_per_node: int) -> list[ActorHandle]:
    """Return an actor for each GPU; actors of one node are next to each other."""
    bundles = [{"GPU": 1.0}] * gpus_per_node
    groups = [placement_group(bundles, strategy="STRICT_PACK") for _ in range(num_nodes)]
    actor: Any = ray.remote(num_gpus=1, num_cpus=0)(_Place)
    strategies = [PlacementGroupSchedulingStrategy(group, n) for group in groups for n in range(gpus_per_node)]
    return [actor.options(scheduling_strategy=strategy).remote() for strategy in strategies]


async def _launch_vllm(config: DictConfig, places: Sequence[ActorHandle]) -> dict[str, Any]:
    """Start vLLM's servers by verl's own loop; return their handles by address once they answer."""
    role = config.actor_rollout_ref
    rollout = role.rollout
    size = rollout.tensor_model_parallel_size * rollout.data_parallel_size * rollout.pipeline_model_parallel_size
    replica_class = with_servers(RolloutReplicaRegistry.get(rollout.name))

    async def launch(rank: int) -> RolloutReplica:
        replica = replica_class(
            replica_rank=rank, config=rollout, model_config=role.model, gpus_per_node=config.trainer.n_gpus_per_node
        )
        replica.rollout_mode = RolloutMode.STANDALONE
        replica.workers = list(places[rank * size : (rank + 1) * size])
        await replica.launch_servers()
        return replica

    replicas = await asyncio.gather(*map(launch, range(len(places) // size)))
    return {replica.server_address: replica.server_handle for replica in replicas}
