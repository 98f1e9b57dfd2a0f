"""What verl 0.9.1's trainer leaves no hook for: names in its module that are replaced while a call of ours runs.

Each has a test in tests/compat/test_verl_trainer.py that fails when verl no longer needs it. What its workers leave no
hook for, loading a checkpoint without unpickling it, is in `opd.compat.plain_loads`.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from omegaconf import DictConfig, open_dict
from verl.experimental.reward_loop import reward_loop
from verl.trainer.ppo.v1 import trainer_base
from verl.utils import hf_tokenizer as _hf_tokenizer
from verl.workers.rollout.llm_server import LLMServerClient, LLMServerManager
from verl.workers.rollout.router import DEFAULT_ROUTING_CACHE_SIZE


@contextlib.contextmanager
def _replaced(module: ModuleType = trainer_base, **names: Any) -> Iterator[None]:
    before = {name: getattr(module, name) for name in names}
    for name, value in names.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


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


class _InProcessServers(LLMServerManager):
    async def _init_global_load_balancer(self) -> None:
        self.global_load_balancer = None

    def get_client(self, client_cls: type | None = None, **kwargs: Any) -> LLMServerClient:
        if client_cls is not None or kwargs:
            raise ValueError("a client of another class needs verl's load balancer: set rollout.agent.num_workers >= 1")
        return InProcessClient(self.config, dict(zip(self.server_addresses, self.server_handles, strict=True)))


def routing_in_process() -> contextlib.AbstractContextManager[None]:
    """While `PPOTrainer._setup` runs: no load-balancer actor.

    verl 0.9.1 starts one in a process of its own, which imports verl (5 to 8 s of a core) to count requests. Where all
    conversations run in the trainer's process, a counter does.
    """
    return _replaced(LLMServerManager=_InProcessServers)


class _NoServers:
    """What the trainer asks of its servers' manager, where there are none."""

    @classmethod
    def create_empty(cls, config: DictConfig) -> _NoServers:
        return cls()

    def get_replicas(self) -> list[Any]:
        return []

    def start_profile(self) -> None: ...

    def stop_profile(self) -> None: ...


def no_servers() -> contextlib.AbstractContextManager[None]:
    """While `PPOTrainer._setup` runs, for a trainer that makes no replicas: no rollout server's class is loaded either.

    verl 0.9.1's own manager without replicas loads it (vLLM's) and starts a load balancer.
    """
    return _replaced(LLMServerManager=_NoServers)


class RewardWorker(reward_loop.RewardLoopWorker):
    """verl's reward worker, whose tokenizer runs code of the model's folder only where the model's flag says so.

    verl 0.9.1 loads it with `trust_remote_code=True`, whatever the config says.
    """

    def _init_reward_fn(self) -> None:
        trusted = self.config.actor_rollout_ref.model.trust_remote_code

        def hf_tokenizer(path: str, **kwargs: Any) -> Any:
            return _hf_tokenizer(path, **kwargs | {"trust_remote_code": trusted})

        with _replaced(reward_loop, hf_tokenizer=hf_tokenizer):
            super()._init_reward_fn()


def told(mark: Callable[[str], None]) -> contextlib.AbstractContextManager[None]:
    """While `PPOTrainer._setup` runs: `mark` gets the name of each of its parts that has ended, in their order."""

    def marked(name: str, *, before: str = "", after: str = "") -> Callable[..., Any]:
        call = getattr(trainer_base, name)

        def marking(*args: Any, **kwargs: Any) -> Any:
            if before:
                mark(before)
            made = call(*args, **kwargs)
            if after:
                mark(after)
            return made

        return marking

    return _replaced(
        RayWorkerGroup=marked("RayWorkerGroup", before="tokenizer and data", after="worker processes"),
        RewardLoopManager=marked("RewardLoopManager", before="models"),
        CheckpointEngineManager=marked("CheckpointEngineManager", before="rollout server"),
    )


def reward_workers() -> contextlib.AbstractContextManager[None]:
    """While `PPOTrainer._setup` runs: its reward actors are `RewardWorker`s."""
    return _replaced(reward_loop, RewardLoopWorker=RewardWorker)


def rendezvous_at(port: int) -> contextlib.AbstractContextManager[None]:
    """While `PPOTrainer._setup` runs: torch's rendezvous of the ranks at `port` of rank 0's node, or a clear error there.

    verl 0.9.1 takes a port range only as an argument of its worker group, which its trainer does not pass.
    """
    return _replaced(RayWorkerGroup=functools.partial(trainer_base.RayWorkerGroup, master_port_range=[port, port + 1]))


def training_data(see: Callable[[Any], None]) -> contextlib.AbstractContextManager[None]:
    """While `PPOTrainer._init_dataloader` runs: `see` gets the training data set before a loader counts its rows."""
    create = trainer_base.create_rl_dataset

    def seen(*args: Any, is_train: bool = True, **kwargs: Any) -> Any:
        dataset = create(*args, is_train=is_train, **kwargs)
        if is_train:
            see(dataset)
        return dataset

    return _replaced(create_rl_dataset=seen)


def data_settings(settings: Callable[[bool], Mapping[str, Any]]) -> contextlib.AbstractContextManager[None]:
    """While `PPOTrainer._init_dataloader` runs: the data sets' configs have more keys, by whether it is the training's.

    verl 0.9.1 gives both the same config.
    """
    create = trainer_base.create_rl_dataset

    def told(paths: Any, config: DictConfig, *args: Any, is_train: bool = True, **kwargs: Any) -> Any:
        config = config.copy()
        with open_dict(config):
            config.update(settings(is_train))
        return create(paths, config, *args, is_train=is_train, **kwargs)

    return _replaced(create_rl_dataset=told)


def quiet() -> contextlib.AbstractContextManager[None]:
    """While `PPOTrainer.fit` runs: none of its dictionary dumps on stdout; our own lines say the same readably."""
    return _replaced(pprint=lambda *args, **kwargs: None)
