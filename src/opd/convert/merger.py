"""verl's FSDP merger without its cast to bf16: shards stay mapped files, each tensor is merged on demand as it was stored."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor  # also allow-lists DTensor's parts for weights_only loading
from verl.model_merger.base_model_merger import ModelMergerConfig
from verl.model_merger.fsdp_model_merger import FSDPModelMerger, merge_non_dtensor_shards

from opd.convert.errors import ConvertError
from opd.convert.source import LORA_FILE, shard_name
from opd.lora import Adapted, is_adapted, merged, plain_tensors

# What verl's FSDP engines build: plain sharding, or replicas of sharded groups.
_MESHES = (("fsdp",), ("ddp", "fsdp"))
_TRUST = (
    "; its code lies beside the checkpoint: if you trust all who can write there, set convert.trust_remote_code: true (of an eval "
    "model.trust_remote_code; python -m opd.convert --trust-remote-code)"
)


class ShardMerger(FSDPModelMerger):
    """The weights of a checkpoint by the plain model's names; differs from verl's merger in four places.

    - Tensors keep the dtype of the shards (verl: bf16, always).
    - Files are loaded with `weights_only=True`: nothing in them can run code (verl: full unpickling).
    - The mesh is read from the first entry that is sharded (verl: from the first by name, so that a plain buffer with an
      early name makes it merge rank 0 alone).
    - Adapters of a LoRA student are added to the weights that they sit on (verl: a folder of their own beside the frozen model).

    Args:
        actor_dir: folder with `model_world_size_W_rank_R.pt` of every rank, already checked to be whole.
        huggingface_dir: folder with the model's config.json.
    """

    def __init__(self, actor_dir: Path, *, huggingface_dir: Path, world_size: int, trust_remote_code: bool):
        config = ModelMergerConfig(
            operation="merge",
            backend="fsdp",
            local_dir=str(actor_dir),
            hf_model_config_path=str(huggingface_dir),
            trust_remote_code=trust_remote_code,
        )
        try:
            super().__init__(config)
        except (ValueError, OSError) as error:
            fix = "" if trust_remote_code or "trust_remote_code" not in str(error) else _TRUST
            raise ConvertError(f"{config.hf_model_config_path}/config.json cannot be loaded: {error}{fix}") from error
        # verl leaves the trainer's attention kernel in the config; who loads the model elsewhere may not have it.
        self.model_config._attn_implementation = None
        self.world_size = world_size
        with _quiet_device_mesh():
            self._shards = [self._load(rank) for rank in range(world_size)]
        self._check_names()
        self._plain, self._scale = self._adapters()
        mesh, mesh_dim_names = self._extract_device_mesh_info(self._shards[0], world_size)
        if mesh_dim_names not in _MESHES:
            raise ConvertError(f"{actor_dir}: sharded over a device mesh {mesh_dim_names}, known are {_MESHES}")
        num_shards, _ = self._calculate_shard_configuration(mesh, mesh_dim_names)
        self._group = self._shards[: num_shards if self._sharded() else world_size]

    def names(self) -> list[str]:
        """Every tensor of the plain model, sorted."""
        return sorted(self._plain)

    def dtypes(self) -> dict[str, torch.dtype]:
        """The dtype each tensor is stored in; of one with an adapter the adapter's."""
        return {name: self._shards[0][self._plain[name].up or self._plain[name].base].dtype for name in self.names()}

    def num_elements(self) -> dict[str, int]:
        """The size of each whole tensor."""
        return {name: self._shards[0][self._plain[name].base].numel() for name in self.names()}

    @property
    def num_adapted(self) -> int:
        """How many tensors have an adapter."""
        return sum(made_of.up is not None for made_of in self._plain.values())

    def adapter_tensors(self) -> dict[str, torch.Tensor]:
        """Return the whole adapters by their stored names; none of a student without adapters."""
        parts = [name for made_of in self._plain.values() for name in (made_of.down, made_of.up) if name is not None]
        return {name: self._whole(name) for name in parts}

    def tensor(self, name: str) -> torch.Tensor:
        """One whole tensor in its stored dtype, adapter added; may be a view of a mapped file.

        Raises:
            ConvertError: the ranks' parts do not make up the tensor.
        """
        base, down, up = self._plain[name]
        if down is None or up is None:
            return self._whole(base)
        return merged(self._whole(base), self._whole(down), self._whole(up), scale=self._scale)

    def _whole(self, name: str) -> torch.Tensor:
        parts: list[Any] = [shard[name] for shard in self._group]
        whole: torch.Tensor
        if not isinstance(parts[0], DTensor):
            try:
                whole = merge_non_dtensor_shards(name, parts)
            except ValueError as error:
                raise ConvertError(str(error)) from error
            return whole
        *outer, placement = parts[0].placements
        if not all(part.is_replicate() for part in outer) or any(p.placements != parts[0].placements for p in parts):
            raise ConvertError(f"{name}: placements {[p.placements for p in parts]} are not one sharding of all ranks")
        whole = self._merge_by_placement([part._local_tensor for part in parts], placement)
        if whole.shape != parts[0].shape:
            raise ConvertError(
                f"{name}: the ranks' parts make {tuple(whole.shape)}, stored was {tuple(parts[0].shape)}"
            )
        return whole

    def _extract_device_mesh_info(self, state_dict: dict[str, Any], world_size: int) -> tuple[Any, tuple[str, ...]]:
        sharded = self._sharded()
        some = {name: state_dict[name] for name in sharded} or state_dict
        mesh: tuple[Any, tuple[str, ...]] = super()._extract_device_mesh_info(some, world_size)
        return mesh

    def _sharded(self) -> list[str]:
        return [name for name, value in self._shards[0].items() if isinstance(value, DTensor)]

    def _load(self, rank: int) -> dict[str, torch.Tensor]:
        path = Path(self.config.local_dir) / shard_name(self.world_size, rank)
        try:
            state: dict[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
            raise ConvertError(
                f"{path} cannot be loaded as plain weights (truncated, or not verl's): {error}"
            ) from error
        odd = [name for name, value in state.items() if not isinstance(value, torch.Tensor)]
        if odd:
            raise ConvertError(f"{path}: {odd[:5]} are no tensors")
        return state

    def _check_names(self) -> None:
        expected = set(self._shards[0])
        for rank, shard in enumerate(self._shards):
            if set(shard) != expected:
                raise ConvertError(f"ranks 0 and {rank} hold different tensors: {sorted(expected ^ set(shard))[:5]}")

    def _adapters(self) -> tuple[dict[str, Adapted], float]:
        """What each tensor of the plain model is made of, and the factor of the adapters' products."""
        names = self._shards[0]
        if not is_adapted(names):
            return {name: Adapted(name, None, None) for name in names}, 0.0
        path = Path(self.config.local_dir) / LORA_FILE
        try:
            told = json.loads(path.read_bytes())
            return plain_tensors(names), int(told["lora_alpha"]) / int(told["r"])
        except FileNotFoundError as error:
            raise ConvertError(f"{path} is missing: it says the scale of the LoRA student's adapters") from error
        except (ValueError, KeyError, TypeError, ZeroDivisionError) as error:
            raise ConvertError(f"the LoRA student in {self.config.local_dir} cannot be merged: {error!r}") from error


@contextmanager
def _quiet_device_mesh() -> Iterator[None]:
    """Without its remark, once a tensor, that meshes are read where there is no process group."""
    logger = logging.getLogger("torch.distributed.device_mesh")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
