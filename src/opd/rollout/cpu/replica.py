"""verl's two ends of the CPU rollout (0.9.1): the replica that starts its server and the worker's adapter that feeds it.

One server is one process, whatever the rollout's parallel sizes: with `tensor_model_parallel_size=N`, N trainer ranks
share it and the first of them sends the weights.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
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
from opd.rollout.cpu.config import EngineConfig
from opd.rollout.cpu.server import RolloutServer, ScriptConfig, ServerConfig

_KEYS = ("num_slots", "script", "script_end")
_WEIGHT_PIECE_BYTES = 64 << 20


def server_name(replica_rank: int, kind: str = "", suffix: str = "") -> str:
    """Name of a replica's Ray actor, by which the trainer's worker finds it."""
    return f"{ROLLOUT_NAME}_server_{kind}{replica_rank}_0{suffix}"


def server_config(rollout: RolloutConfig, model: HFModelConfig) -> ServerConfig:
    """Translate verl's rollout and model configs.

    `rollout.engine_kwargs.cpu` takes `num_slots` (see `EngineConfig`) and, for tests of tools, `script` (a list of replies
    by assistant turn, or a mapping from a text in the prompt to such a list) and `script_end` (see `ScriptConfig`).

    Raises:
        ValueError: an unknown key, or a setting that the CPU rollout cannot honour.
    """
    kwargs = dict((rollout.engine_kwargs or {}).get(ROLLOUT_NAME) or {})
    unknown = sorted(set(kwargs) - set(_KEYS))
    if unknown:
        raise ValueError(f"rollout.engine_kwargs.{ROLLOUT_NAME} has {', '.join(unknown)}; it knows {', '.join(_KEYS)}")
    if rollout.dtype not in ("float32", "fp32", "float"):
        raise ValueError(
            f"rollout.dtype={rollout.dtype}: the CPU rollout computes in fp32 only; set rollout.dtype=float32"
        )
    if rollout.logprobs_mode != "processed_logprobs":
        raise ValueError(
            f"rollout.logprobs_mode={rollout.logprobs_mode}: the CPU rollout gives processed_logprobs only; set it so"
        )
    if rollout.quantization is not None:
        raise ValueError(f"rollout.quantization={rollout.quantization}: the CPU rollout has none; set it to null")
    if model.lora_rank > 0 and not model.lora.get("merge", False):
        raise ValueError("model.lora.merge=False: the CPU rollout serves whole weights only; set it to True")
    context = model.hf_config.max_position_embeddings
    max_model_len = rollout.max_model_len or context
    if max_model_len > context:
        raise ValueError(
            f"rollout.max_model_len={max_model_len} is above the model's max_position_embeddings={context}"
        )
    script = kwargs.get("script")
    return ServerConfig(
        engine=EngineConfig(
            vocab_size=min(len(model.tokenizer), model.hf_config.vocab_size),
            eos_token_ids=end_tokens(model.tokenizer, model.generation_config),
            max_model_len=max_model_len,
            prompt_length=rollout.prompt_length,
            response_length=rollout.response_length,
            ignore_eos=rollout.ignore_eos,
            max_num_seqs=rollout.max_num_seqs,
            num_slots=int(kwargs.get("num_slots", EngineConfig.num_slots)),
        ),
        hf_config=model.hf_config,
        model_path=str(model.local_path),
        load_weights=rollout.load_format != "dummy",
        trust_remote_code=model.trust_remote_code,
        script=None
        if not script
        else ScriptConfig(
            replies=dict(script) if isinstance(script, Mapping) else {"": list(script)},
            tokenizer_path=str(model.local_tokenizer_path),
            end=kwargs.get("script_end", ScriptConfig.end),
        ),
    )


def start_server(rollout: Any, model: Any, name: str, **options: Any) -> Any:
    """Start a replica's server, or find the one already started under that name; returns its Ray handle at once.

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
    """Starts one `RolloutServer` as a named Ray actor on the node of its first worker."""

    async def launch_servers(self) -> None:
        """Start the server without waiting for it: it imports and builds while verl starts its other processes."""
        kind = "reward_" if self.is_reward_model else "teacher_" if self.is_teacher_model else ""
        name = server_name(self.replica_rank, kind, self.name_suffix)
        node_id = await self.workers[0].__ray_call__.remote(lambda worker: ray.get_runtime_context().get_node_id())
        server = start_server(
            self.config,
            self.model_config,
            name,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node_id, soft=False),
        )
        self.servers = [server]
        self._server_handle = server
        self._server_address = name

    async def sleep(self) -> None:
        """Wait for the last request, then free the key-value memory."""
        await self._server_handle.wait_for_requests_to_drain.remote()
        await super().sleep()


class CPUServerAdapter(BaseRollout):
    """What a trainer rank calls to steer its replica's server."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1) -> None:
        super().__init__(config, model_config, device_mesh)
        ranks_per_replica = (
            self.config.tensor_model_parallel_size
            * self.config.data_parallel_size
            * self.config.pipeline_model_parallel_size
        )
        rank = int(os.environ["RANK"])
        self.replica_rank = rank // ranks_per_replica if replica_rank == -1 else replica_rank
        self._sends = rank % ranks_per_replica == 0
        self._server: Any = None

    def _handle(self) -> Any:
        # Looked up late: verl starts the server after the workers.
        if self._server is None:
            self._server = ray.get_actor(server_name(self.replica_rank))
        return self._server

    async def resume(self, tags: list[str]) -> None:
        if self._sends:
            await self._handle().wake_up.remote(tags=tags)

    async def release(self) -> None:
        if self._sends:
            await self._handle().sleep.remote()

    @torch.no_grad()
    async def update_weights(
        self,
        weights: Iterable[tuple[str, torch.Tensor]],
        wire_format: str = "named_tensors",
        *,
        global_steps: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Send a full set of named tensors.

        Every rank draws the generator to its end, also after an error: drawing is a collective, and a rank that stops
        would leave the others waiting.

        Raises:
            NotImplementedError: another wire format, or LoRA adapters.
            ValueError: the server's model has other tensors.
        """
        if wire_format != "named_tensors" or kwargs.get("peft_config") is not None:
            raise NotImplementedError(f"the CPU rollout takes full weights only, not {wire_format!r} or LoRA adapters")
        error: Exception | None = None
        for piece, last in _pieces(weights):
            if not self._sends or error is not None:
                continue
            try:
                await self._handle().load_weights.remote(piece, last, global_steps)
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
