"""The form in which the loss of the head runs: the worker and the memory plan, which needs no torch, ask the same function."""

from pathlib import Path
from typing import Literal, NamedTuple

BackendName = Literal["plain", "compiled", "fused"]
WORKSPACE_GIB: dict[BackendName, float] = {"plain": 0.0, "compiled": 2.6, "fused": 1.3}
"""GiB for logits that each form takes by default."""
FUSED_KINDS = ("reverse_kl", "forward_kl", "jsd")
"""Divergences that have a fused kernel; their places are their numbers in rows.cu."""
FUSED = Path(__file__).parent / "losses" / "hopper"


class Need(NamedTuple):
    """The facts of a training loss and its device that decide the form in which it runs."""

    kind: str
    top_k: int
    terms: frozenset[str]  # names of the terms and further inputs of one number per token
    dtypes: frozenset[str]  # names of both heads' dtypes, such as `bf16`
    capability: tuple[int, int] | None  # of the CUDA device; None means a CPU


def fused_lacks(need: Need) -> str | None:
    """Return the part of a loss, or of a device, for which there is no fused kernel. None means that all is there."""
    if need.kind not in FUSED_KINDS or need.top_k:
        return f"divergence {need.kind} has no kernel"
    if others := need.terms - {"divergence"}:
        return f"no kernel takes {', '.join(sorted(others))}"
    if need.dtypes != {"bf16"}:
        return f"the heads are {', '.join(sorted(need.dtypes))}; the kernels take bf16"
    if need.capability is None or need.capability[0] != 9:
        return "the device is no Hopper GPU (compute capability 9.0)"
    return None


def form_of(need: Need) -> BackendName:
    """Return the form that trains a loss on a device."""
    if need.capability is None:
        return "plain"
    return "fused" if FUSED.is_dir() and fused_lacks(need) is None else "compiled"
