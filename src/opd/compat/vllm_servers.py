"""verl's vLLM servers, begun while the models load: verl 0.9.1 makes their actors afterwards, and each imports vLLM for 15 s first.

Begun means an actor's process, its imports and its constructor, which reads configs and the tokenizer. `launch_server` takes the
device; verl calls it when it always did, with the models loaded and their memory given back. Both times verl's own loop names
the actors, places them and gives them their devices; the second time it gets the actors of the first.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import ray
from omegaconf import DictConfig
from verl.utils.device import get_resource_name
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry

from opd.compat import vllm_answers

ROLLOUT_NAME = "vllm"


@contextlib.contextmanager
def begun_beside_models(
    config: DictConfig, *, role: str, keeps_prefixes: bool = False
) -> Iterator[Callable[[Any], None]]:
    """Yield a function that has a worker group of a role load its models, next to which vLLM's servers begin.

    The exit ends servers that were not launched, as after models that could not be loaded. Nothing changes for other
    rollouts, nor for prefill and decode on servers of their own, which verl starts in another way.
    """
    rollout = config.actor_rollout_ref.rollout
    if rollout.name != ROLLOUT_NAME or rollout.disaggregation.enabled:
        yield lambda group: group.init_model()
        return
    load = RolloutReplicaRegistry._registry[ROLLOUT_NAME]
    servers = _Servers(config, lambda: with_servers(load(), keeps_prefixes=keeps_prefixes))
    RolloutReplicaRegistry.register(ROLLOUT_NAME, servers.replica_class)
    try:
        yield lambda group: _init_model(group, role, servers)
    finally:
        RolloutReplicaRegistry.register(ROLLOUT_NAME, load)
        servers.end()


def with_servers(replica: type[Any], *, keeps_prefixes: bool = False) -> type[Any]:
    """Return verl's replica of vLLM servers (`vLLMReplica`) whose servers are asked as `vllm_answers` says."""

    class Replica(replica):
        server_class: Any

        def __init__(self, *args: Any, **kwargs: Any):
            super().__init__(*args, **kwargs)
            server = self.server_class.__ray_metadata__.modified_class
            self.server_class = ray.remote(vllm_answers.server_of(server, keeps_prefixes=keeps_prefixes))

    return Replica


def _init_model(group: Any, role: str, servers: _Servers) -> None:
    placed = [_Placed(worker) for worker in group.workers]
    ray.get([rank.answer for rank in placed])  # before the call to load: a rank takes calls in no order
    loading = group.execute_all_async(f"{role}_init_model")  # the name of a colocated worker's method
    servers.begin(placed)
    ray.get(loading)


class _Placed:
    """A rank that was asked for its node and devices before it began to load: it answers no call while it loads."""

    def __init__(self, worker: Any):
        self.worker = worker
        # In verl's words, and as a lambda, which travels whole: by its name the rank would import this module first.
        self.answer = worker.__ray_call__.remote(
            lambda _: (
                ray.get_runtime_context().get_node_id(),
                ray.get_runtime_context().get_accelerator_ids()[get_resource_name()][0],
            )
        )
        self.__ray_call__ = SimpleNamespace(remote=lambda _: self.answer)


class _Servers:
    """The servers that were begun, by the names of their actors, until verl asks for them."""

    def __init__(self, config: DictConfig, load: Callable[[], type[Any]]):
        self._role = config.actor_rollout_ref
        self._load = load
        self._begun: dict[str, Any] = {}

    def begin(self, ranks: Sequence[_Placed]) -> None:
        """Return when Ray knows of the servers; they come up, or fail, by themselves."""
        replica_class = self._load()  # imports vLLM, in this process too
        rollout = self._role.rollout
        size = rollout.tensor_model_parallel_size * rollout.data_parallel_size * rollout.pipeline_model_parallel_size
        shared = {"config": rollout, "model_config": self._role.model, "gpus_per_node": rollout.n_gpus_per_node}
        replicas = [replica_class(replica_rank=rank, **shared) for rank in range(len(ranks) // size)]

        async def begin_all() -> None:
            await asyncio.gather(*map(begin_one, replicas))

        async def begin_one(replica: RolloutReplica) -> None:
            replica.server_class = _server_class(functools.partial(self._make, replica.server_class))
            with contextlib.suppress(_IsBegun):
                await replica.init_hybrid(SimpleNamespace(workers=ranks))

        asyncio.run(begin_all())

    def _make(self, server_class: Any, options: dict[str, Any], arguments: dict[str, Any]) -> _Begun:
        arguments |= {"workers": [rank.worker for rank in arguments["workers"]]}
        self._begun[options["name"]] = server_class.options(**options).remote(**arguments)
        return _Begun()

    def replica_class(self) -> type[RolloutReplica]:
        """Return verl's replica, which gets the begun servers."""
        begun = self._begun

        class Replica(self._load()):  # type: ignore[misc] # a base that is known at run time
            def __init__(self, *args: Any, **kwargs: Any):
                super().__init__(*args, **kwargs)
                make = self.server_class

                def take(options: dict[str, Any], arguments: dict[str, Any]) -> Any:
                    server = begun.pop(options["name"], None)
                    return make.options(**options).remote(**arguments) if server is None else server

                self.server_class: Any = _server_class(take)

        return Replica

    def end(self) -> None:
        """End those that verl did not ask for."""
        for server in self._begun.values():
            with contextlib.suppress(ray.exceptions.RayError):  # Ray itself may be gone
                ray.kill(server)
        self._begun.clear()


def _server_class(make: Callable[[dict[str, Any], dict[str, Any]], Any]) -> Any:
    """Return a substitute for a replica's Ray class: `options(...).remote(...)` asks `make` for the actor."""

    def options(**options: Any) -> Any:
        return SimpleNamespace(remote=lambda **arguments: make(options, arguments))

    return SimpleNamespace(options=options)


class _IsBegun(Exception):
    """verl's loop has made all servers of a replica, and turns to the first of them."""


class _Begun:
    """verl's handle of a server that is to be begun only."""

    @property
    def get_master_address(self) -> Any:
        raise _IsBegun
