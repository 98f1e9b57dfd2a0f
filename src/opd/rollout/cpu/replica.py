"""verl's two ends of the CPU rollout (0.9.1): the replica that starts its server and the worker's adapter that feeds it.

One server is one process for any parallel sizes of the rollout. With `tensor_model_parallel_size=N`, N trainer ranks share it,
and the first of them sends the weights.
"""

import os
from collections.abc import Iterable, Iterator
from typing import Any

import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import CONTROL_METHOD_CONCURRENCY, RolloutReplica

from opd.compat.cpu import ROLLOUT_NAME
from opd.data.turn_ends import end_tokens
from opd.rollout.cpu.engine import EngineConfig
from opd.rollout.cpu.server import RolloutServer, ServerConfig

_WEIGHT_PIECE_BYTES = 64 << 20


def server_name(replica_rank: int) -> str:
    """Return the name of a replica's Ray actor, by which the trainer's worker finds it."""
    return f"{ROLLOUT_NAME}_server_{replica_rank}_0"


def server_config(rollout: RolloutConfig, model: HFModelConfig) -> ServerConfig:
    """Translate verl's rollout and model configs.

    `rollout.engine_kwargs.cpu` takes `script` (see `ServerConfig`).

    Raises:
        ValueError: an unknown key, or a setting that the CPU rollout cannot honour.
    """
    kwargs = dict((rollout.engine_kwargs or {}).get(ROLLOUT_NAME) or {})
    script = kwargs.pop("script", None)
    if kwargs:
        raise ValueError(f"rollout.engine_kwargs.{ROLLOUT_NAME} has {', '.join(sorted(kwargs))}; it knows script alone")
    if rollout.dtype != "float32":
        raise ValueError(f"rollout.dtype={rollout.dtype}: the CPU rollout computes in fp32 only; set actor.dtype: fp32")
    context = model.hf_config.max_position_embeddings
    max_model_len = rollout.max_model_len or context
    if max_model_len > context:
        raise ValueError(
            f"rollout.max_model_len={max_model_len} is above the model's max_position_embeddings={context}"
        )
    return ServerConfig(
        engine=EngineConfig(
            vocab_size=min(len(model.tokenizer), model.hf_config.vocab_size),
            eos_token_ids=frozenset(() if rollout.ignore_eos else end_tokens(model.tokenizer, model.generation_config)),
            max_model_len=max_model_len,
            response_length=rollout.response_length,
            max_num_seqs=rollout.max_num_seqs,
        ),
        hf_config=model.hf_config,
        model_path=str(model.local_path),
        load_weights=rollout.load_format != "dummy",
        trust_remote_code=model.trust_remote_code,
        script=script,
    )


def start_server(rollout: Any, model: Any, name: str, **options: Any) -> Any:
    """Start a replica's server, or find the one already started under that name; return its Ray handle at once.

    Args:
        rollout: `actor_rollout_ref.rollout`. model: `actor_rollout_ref.model`, both as verl hands them out.
        name: see `server_name`.
        options: further options of the Ray actor.
    """
    rollout_config: RolloutConfig = omega_conf_to_dataclass(rollout, dataclass_type=RolloutConfig)
    model_config: HFModelConfig = omega_conf_to_dataclass(model, dataclass_type=HFModelConfig)
    # Requests wait inside the server, whose engine batches them, and not in Ray's queue.
    concurrency = max(1000, rollout_config.max_num_seqs + CONTROL_METHOD_CONCURRENCY)
    actor: Any = ray.remote(RolloutServer)
    actor = actor.options(name=name, get_if_exists=True, num_cpus=0, max_concurrency=concurrency, **options)
    return actor.remote(server_config(rollout_config, model_config))


class CPURolloutReplica(RolloutReplica):
    """A replica with one `RolloutServer`, a named Ray actor on the node of its first worker."""

    async def launch_servers(self) -> None:
        """Start the server without waiting for it: it imports and builds while verl starts its other processes."""
        node_id = await self.workers[0].__ray_call__.remote(lambda worker: ray.get_runtime_context().get_node_id())
        place = NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
        self._server_address = server_name(self.replica_rank)
        self._server_handle = start_server(
            self.config, self.model_config, self._server_address, scheduling_strategy=place
        )
        self.servers = [self._server_handle]


class CPUServerAdapter(BaseRollout):
    """The methods that a trainer rank calls to steer its replica's server."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1) -> None:
        super().__init__(config, model_config, device_mesh)
        num_ranks = (
            self.config.tensor_model_parallel_size
            * self.config.data_parallel_size
            * self.config.pipeline_model_parallel_size
        )
        replica, place = divmod(int(os.environ["RANK"]), num_ranks)
        self.replica_rank = replica if replica_rank == -1 else replica_rank
        self._sends = place == 0

    def _server(self) -> Any:
        return ray.get_actor(server_name(self.replica_rank))  # verl starts the server after the workers

    async def resume(self, tags: list[str]) -> None:
        """Restore nothing: the server takes memory with the next request."""

    async def release(self) -> None:
        """Have the server free its key-value memory."""
        if self._sends:
            await self._server().sleep.remote()

    @torch.no_grad()
    async def update_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], *, global_steps: int | None = None, **_: Any
    ) -> None:
        """Send a full set of named tensors.

        Every rank runs the generator to its end, also after an error. Each of its steps is a collective, and a rank that stops would
        leave the others waiting.

        Raises:
            ValueError: there is no such server, or its model has other tensors.
        """
        error: Exception | None = None
        for piece, last in _pieces(weights):
            if not self._sends or error is not None:
                continue
            try:
                await self._server().load_weights.remote(piece, last, global_steps)
            except (ray.exceptions.RayError, ValueError) as raised:  # ValueError: no server of that name
                error = raised
        if error is not None:
            raise error


def _pieces(weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[dict[str, torch.Tensor], bool]]:
    """Group tensors into pieces of about `_WEIGHT_PIECE_BYTES`, each with whether it is the last; copies to the CPU."""
    piece: dict[str, torch.Tensor] = {}
    size = 0
    for name, tensor in weights:
        if size >= _WEIGHT_PIECE_BYTES:
            yield piece, False
            piece, size = {}, 0
        piece[name] = tensor.detach().cpu()
        size += tensor.nbytes
    yield piece, True
