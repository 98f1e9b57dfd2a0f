"""How weights come from a model's files onto the ranks: read as they are stored, and made what an engine keeps on its device.

verl 0.9.1 reads in the dtype that the engine keeps, so that the CPU makes fp32 of a bf16 file: 4 bytes of host memory a weight, in every
rank where head and embedding are tied. `fully_shard` copies each layer to the device, and then rank 0 sends all of them once more.
Here tensors of a safetensors file stay where the file is mapped, ranks shard parameters that have no memory yet, and what rank 0 sends,
once, is converted where it arrives. The values are the same: both round to the nearest, ties to even.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import verl.utils.model
from safetensors import safe_open
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from transformers import PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME
from verl.utils.fsdp_utils import maybe_patch_fsdp_module
from verl.workers.engine.fsdp import transformer_impl

_STORED = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def stored_dtype(folder: str) -> torch.dtype | None:
    """The dtype of every tensor in the safetensors files that transformers reads; None: they differ, are of another kind, or there are none."""
    found = set()
    for name in _files(Path(folder)):
        with safe_open(Path(folder, name), framework="pt") as file:
            found |= {file.get_slice(key).get_dtype() for key in file.keys()}  # noqa: SIM118 - not a mapping
    return _STORED.get(found.pop()) if len(found) == 1 else None


def _files(folder: Path) -> set[str]:
    if (folder / SAFE_WEIGHTS_NAME).exists():
        return {SAFE_WEIGHTS_NAME}
    index = folder / SAFE_WEIGHTS_INDEX_NAME
    return set(json.loads(index.read_text())["weight_map"].values()) if index.exists() else set()


@contextmanager
def buffers_as_read() -> Iterator[None]:
    """While verl builds a model (`_build_module`): its buffers stay what transformers made of them as it read.

    verl casts the whole model, and a bf16 model's rotary frequencies with it (`inv_freq`, fp32 in transformers): a frequency is off
    by up to 0.4 % then, which moves an angle of Qwen3 at token 2,048 by up to 2.4 radians.
    """
    choose = verl.utils.model.get_hf_auto_model_class
    read: list[tuple[nn.Module, dict[str, torch.Tensor | None]]] = []

    def choose_noted(**kwargs: Any) -> Any:
        auto_class = choose(**kwargs)

        def from_pretrained(*args: Any, **options: Any) -> PreTrainedModel:
            module: PreTrainedModel = auto_class.from_pretrained(*args, **options)
            read.extend((part, dict(part._buffers)) for part in module.modules() if part._buffers)
            return module

        return SimpleNamespace(from_pretrained=from_pretrained)

    verl.utils.model.get_hf_auto_model_class = choose_noted
    try:
        yield
    finally:
        verl.utils.model.get_hf_auto_model_class = choose
    for part, buffers in read:
        part._buffers.update(buffers)


@contextmanager
def sharded_before_they_come(dtype: torch.dtype, *, as_one: bool = False) -> Iterator[None]:
    """While verl shards a model (`_build_fsdp_module`): parameters get memory where they are kept, in `dtype`, as shards alone.

    verl has taken the weights aside by then (`state_dict`) and sends them from rank 0 afterwards.

    Args:
        as_one: FSDP gathers and reduces the whole model at once, and not each layer.
    """
    shard = transformer_impl.apply_fsdp2

    def apply(module: nn.Module, options: Mapping[str, Any], *args: Any) -> None:
        _without_memory(module, dtype)
        if as_one:
            with maybe_patch_fsdp_module(module):
                fully_shard(module, **options)
        else:
            shard(module, options, *args)
        # With an offload policy, as verl gives its reference, FSDP pins shards on the host whatever device they are made on; one that
        # was made on the device would then be a parameter of one device with a shard on another, which verl cannot move.
        waits = isinstance(options.get("offload_policy"), CPUOffloadPolicy)
        device = "cpu" if waits else options["mesh"].device_type
        module._apply(lambda tensor: torch.empty_like(tensor, device=device) if tensor.is_meta else tensor)

    transformer_impl.apply_fsdp2 = apply
    try:
        yield
    finally:
        transformer_impl.apply_fsdp2 = shard


def _without_memory(module: nn.Module, dtype: torch.dtype) -> None:
    """Give up the memory of all parameters; those that parts share stay shared."""
    replaced: dict[nn.Parameter, nn.Parameter] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is None:
                continue
            if parameter not in replaced:
                kept = dtype if parameter.is_floating_point() else parameter.dtype
                empty = torch.empty_like(parameter, device="meta", dtype=kept)
                replaced[parameter] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
            part._parameters[name] = replaced[parameter]
