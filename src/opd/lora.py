"""The tensors of a LoRA student by peft's names, and the plain model that they make: W + alpha / rank * B A in each adapted layer."""

from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor

# Peft's prefix of a model's own names, its name of an adapted layer, and its names of the two matrices.
_WRAPPER, _BASE, _DOWN, _UP = "base_model.model.", ".base_layer.", ".lora_A.default.weight", ".lora_B.default.weight"


class Adapted(NamedTuple):
    """The stored names of one tensor of the plain model and its two adapters. None means that it has none."""

    base: str
    down: str | None
    up: str | None


def is_adapted(names: Iterable[str]) -> bool:
    """Return True if a checkpoint's tensors are a LoRA student's."""
    return any(name.startswith(_WRAPPER) or ".lora_" in name for name in names)


def plain_tensors(names: Iterable[str]) -> dict[str, Adapted]:
    """Return the plain model's tensor names, each with its stored names, in the order of `names`.

    Raises:
        ValueError: an adapter of another form than two matrices on a layer's weight.
    """
    stored = dict.fromkeys(names)
    found, used = {}, set()
    for name in stored:
        if name.endswith((_DOWN, _UP)):
            continue
        layer = name.rpartition(_BASE)[0] if name.endswith(f"{_BASE}weight") else None
        down, up = (None, None) if layer is None else (f"{layer}{_DOWN}", f"{layer}{_UP}")
        if layer is not None and not {down, up} <= stored.keys():
            raise ValueError(f"{name}: its adapter {down} or {up} is missing")
        used |= {name, down, up}
        found[name.removeprefix(_WRAPPER).replace(_BASE, ".")] = Adapted(name, down, up)
    odd = sorted(name for name in stored if name not in used or (".lora_" in name and not name.endswith((_DOWN, _UP))))
    if odd:
        raise ValueError(f"{odd[0]}: known are LoRA adapters of two matrices on linear layers ({len(odd)} others)")
    return found


def merged(base: Tensor, down: Tensor, up: Tensor, *, scale: float) -> Tensor:
    """Return base [out, in] + scale * up [out, rank] @ down [rank, in], in the adapters' dtype."""
    return base.to(up.dtype).addmm(up, down, alpha=scale)
