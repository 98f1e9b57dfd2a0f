"""The weights of a checkpoint by the plain model's names: shards stay mapped files, each tensor is merged on demand as it was stored.

verl's own merger casts everything to bf16, unpickles shards whole, and reads the mesh from the first entry by name.
"""

import json
import logging
import pickle
from pathlib import Path

import torch
from accelerate import init_empty_weights
from torch.distributed.tensor import (  # also allow-lists DTensor's parts for weights_only loading
    DTensor,
    Replicate,
    Shard,
)
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from opd.convert.errors import ConvertError
from opd.convert.source import LORA_FILE, shard_name
from opd.lora import Adapted, is_adapted, merged, plain_tensors

# verl's FSDP engines build plain sharding, or replicas of sharded groups.
_MESHES = (("fsdp",), ("ddp", "fsdp"))
_TRUST = (
    "; its code is in the checkpoint: if you trust all who can write there, set convert.trust_remote_code: true (of an eval "
    "model.trust_remote_code; python -m opd.convert --trust-remote-code)"
)


class ShardMerger:
    """The merged tensors of a checkpoint; adapters of a LoRA student are added to the weights that they adapt.

    Args:
        actor_dir: folder with `model_world_size_W_rank_R.pt` of every rank, already checked to be whole.
        huggingface_dir: folder with the model's config.json.
    """

    def __init__(self, actor_dir: Path, *, huggingface_dir: Path, world_size: int, trust_remote_code: bool):
        self.trusts = trust_remote_code
        try:
            self.config = AutoConfig.from_pretrained(huggingface_dir, trust_remote_code=trust_remote_code)
        except (ValueError, OSError) as error:
            fix = "" if trust_remote_code or "trust_remote_code" not in str(error) else _TRUST
            raise ConvertError(f"{huggingface_dir}/config.json cannot be loaded: {error}{fix}") from error
        # verl leaves the trainer's attention kernel in the config; other machines may not have it.
        self.config._attn_implementation = None
        # Its remark, once a tensor, is that meshes are read where there is no process group.
        logging.getLogger("torch.distributed.device_mesh").setLevel(logging.ERROR)
        shards = [_load(actor_dir / shard_name(world_size, rank)) for rank in range(world_size)]
        for rank, shard in enumerate(shards):
            if odd := set(shard) ^ set(shards[0]):
                raise ConvertError(f"ranks 0 and {rank} hold different tensors: {sorted(odd)[:5]}")
        self._plain, self._scale = _adapters(actor_dir, shards[0])
        mesh = next((value.device_mesh for value in shards[0].values() if isinstance(value, DTensor)), None)
        if mesh is not None and mesh.mesh_dim_names not in _MESHES:
            raise ConvertError(f"{actor_dir}: sharded over a device mesh {mesh.mesh_dim_names}, known are {_MESHES}")
        self._group = shards if mesh is None else shards[: mesh.mesh.shape[-1]]

    def empty_model(self, dtype: torch.dtype) -> PreTrainedModel:
        """Return the checkpoint's model with parameters on the meta device and its real buffers."""
        with init_empty_weights():
            model: PreTrainedModel = AutoModelForCausalLM.from_config(
                self.config, dtype=dtype, trust_remote_code=self.trusts
            )
        return model

    def names(self) -> list[str]:
        """Return every tensor of the plain model, sorted."""
        return sorted(self._plain)

    def dtypes(self) -> dict[str, torch.dtype]:
        """Return the dtype in which each tensor is stored; of an adapted tensor the adapter's."""
        return {name: self._group[0][self._plain[name].up or self._plain[name].base].dtype for name in self.names()}

    def num_elements(self) -> dict[str, int]:
        """Return the size of each whole tensor."""
        return {name: self._group[0][self._plain[name].base].numel() for name in self.names()}

    @property
    def num_adapted(self) -> int:
        return sum(made_of.up is not None for made_of in self._plain.values())

    def tensor(self, name: str) -> torch.Tensor:
        """Return one whole tensor in its stored dtype, adapter added; it may be a view of a mapped file.

        Raises:
            ConvertError: the ranks' parts do not make up the tensor.
        """
        base, down, up = self._plain[name]
        if down is None or up is None:
            return self._whole(base)
        return merged(self._whole(base), self._whole(down), self._whole(up), scale=self._scale)

    def _whole(self, name: str) -> torch.Tensor:
        parts = [shard[name] for shard in self._group]
        placements = [part.placements if isinstance(part, DTensor) else (Replicate(),) for part in parts]
        *outer, inner = placements[0]
        if any(other != placements[0] for other in placements) or not all(part.is_replicate() for part in outer):
            raise ConvertError(f"{name}: placements {placements} are not one sharding of all ranks")
        local = [part._local_tensor if isinstance(part, DTensor) else part for part in parts]
        if not isinstance(inner, Shard):
            if not inner.is_replicate() or not all(torch.equal(local[0], other) for other in local):
                raise ConvertError(f"{name}: the ranks' copies differ, or are parts of a sum ({inner})")
            return local[0]
        whole = torch.cat(local, dim=inner.dim)
        if whole.shape != parts[0].shape:
            raise ConvertError(
                f"{name}: the ranks' parts make {tuple(whole.shape)}, stored was {tuple(parts[0].shape)}"
            )
        return whole


def _load(path: Path) -> dict[str, torch.Tensor]:
    try:
        state: dict[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ConvertError(f"{path} cannot be loaded as plain weights (truncated, or not verl's): {error}") from error
    if odd := [name for name, value in state.items() if not isinstance(value, torch.Tensor)]:
        raise ConvertError(f"{path}: {odd[:5]} are no tensors")
    return state


def _adapters(actor_dir: Path, names: dict[str, torch.Tensor]) -> tuple[dict[str, Adapted], float]:
    """Return the stored names of each tensor of the plain model, and the factor of the adapters' products."""
    if not is_adapted(names):
        return {name: Adapted(name, None, None) for name in names}, 0.0
    path = actor_dir / LORA_FILE
    try:
        told = json.loads(path.read_bytes())
        return plain_tensors(names), int(told["lora_alpha"]) / int(told["r"])
    except FileNotFoundError as error:
        raise ConvertError(f"{path} is missing: it says the scale of the LoRA student's adapters") from error
    except (ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        raise ConvertError(f"the LoRA student in {actor_dir} cannot be merged: {error!r}") from error
