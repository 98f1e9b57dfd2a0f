"""Weights on their way from a model's files to the ranks: read as they are stored, and cast on the device.

verl 0.9.1 reads in the dtype that the engine keeps: of a bf16 file 4 bytes of host memory a weight. `fully_shard` copies
each layer to the device, and then rank 0 sends all of them once more. Here tensors stay where the file is mapped, ranks shard
parameters that have no memory yet, and rank 0 sends once. The values are the same: both round to the nearest, ties to even.
"""

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
from torch.distributed.fsdp import fully_shard
from transformers import PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME
from verl.utils.fsdp_utils import maybe_patch_fsdp_module
from verl.workers.engine.fsdp import transformer_impl

from opd.compat import replaced

_STORED = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def stored_dtype(folder: str) -> torch.dtype | None:
    """Return the dtype of every tensor in the safetensors files that transformers reads. None means that there is no one such dtype."""
    files, index = {SAFE_WEIGHTS_NAME}, Path(folder, SAFE_WEIGHTS_INDEX_NAME)
    if not Path(folder, SAFE_WEIGHTS_NAME).exists():
        files = set(json.loads(index.read_text())["weight_map"].values()) if index.exists() else set()
    found = set()
    for name in files:
        with safe_open(Path(folder, name), framework="pt") as file:
            found |= {file.get_slice(key).get_dtype() for key in file.keys()}  # noqa: SIM118 - not a mapping
    return _STORED.get(found.pop()) if len(found) == 1 else None


@contextmanager
def buffers_as_read() -> Iterator[None]:
    """Keep the buffers that transformers made as it read, while verl builds a model (`_build_module`).

    verl casts a bf16 model's rotary frequencies too (`inv_freq`, fp32 in transformers). An angle of Qwen3 at token 2,048 then
    moves by up to 2.4 radians.
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

    with replaced(verl.utils.model, get_hf_auto_model_class=choose_noted):
        yield
    for part, buffers in read:
        part._buffers.update(buffers)


@contextmanager
def sharded_before_they_come(dtype: torch.dtype, *, as_one: bool = False) -> Iterator[None]:
    """Give parameters memory where they are kept, in `dtype`, as shards alone, while verl shards a model (`_build_fsdp_module`).

    verl has copied the weights by then (`state_dict`) and sends them from rank 0 afterwards.

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
        device = options["mesh"].device_type
        module._apply(lambda tensor: torch.empty_like(tensor, device=device) if tensor.is_meta else tensor)

    with replaced(transformer_impl, apply_fsdp2=apply):
        yield


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
