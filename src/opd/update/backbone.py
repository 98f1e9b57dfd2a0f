"""Attention over packed rows without a mask, and compiled decoder layers, for CUDA devices.

transformers' `sdpa` needs a dense [T, T] mask for packed rows, and its flash attention a package of its own.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

VARLEN = "varlen"
"""Name of the attention implementation that this module registers with transformers."""

MAX_GRAPHS = 64
"""Compiled forms of one decoder layer's code in a process, before torch gives up compiling it."""

_last_bounds: tuple[weakref.ref[Tensor], Tensor] | None = None


def packed_arguments(bounds: Tensor) -> dict[str, Any]:
    """Return the bounds [B + 1] of packed rows in transformers' names."""
    bounds = bounds.to(torch.int32)
    return {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds}


def varlen_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    cu_seq_lens_q: Tensor | None = None,
    position_ids: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Return [1, T, H, d]: causal attention within each row of a packed batch by torch's flash kernel (16-bit, CUDA).

    Args:
        query: [1, H, T, d]. key, value: [1, H_kv, T, d], H a multiple of H_kv.
        cu_seq_lens_q: [B + 1] int32; without it rows begin where `position_ids` [1, T] is 0.
    """
    from torch.nn.attention.varlen import varlen_attn

    if query.shape[0] != 1:
        raise ValueError(
            f"attn_implementation={VARLEN}: got a batch of {query.shape[0]} padded rows; it takes rows packed into one: "
            "set actor.use_remove_padding: true, or another attn_implementation"
        )
    if cu_seq_lens_q is None:
        if position_ids is None:
            raise ValueError(f"attn_implementation={VARLEN}: the model passes neither cu_seq_lens_q nor position_ids")
        cu_seq_lens_q = _bounds_of(position_ids)
    q, k, v = (states[0].transpose(0, 1) for states in (query, key, value))
    longest = q.shape[0]  # a bound: reading the longest row back would wait for the device
    window = (-1, 0) if sliding_window is None else (sliding_window - 1, 0)
    out: Any = varlen_attn(q, k, v, cu_seq_lens_q, cu_seq_lens_q, longest, longest, scale=scaling, window_size=window)
    return out[None], None


def _bounds_of(position_ids: Tensor) -> Tensor:
    """Return [B + 1] int32 of packed rows; the next layer of the same forward finds them again."""
    global _last_bounds
    if _last_bounds is not None and _last_bounds[0]() is position_ids:
        return _last_bounds[1]
    flat = position_ids.flatten()
    starts = (flat == 0).nonzero().flatten()
    bounds = torch.cat([starts, starts.new_tensor([len(flat)])]).to(torch.int32)
    _last_bounds = (weakref.ref(position_ids), bounds)
    return bounds


def no_mask(*args: Any, attention_mask: Tensor | None = None, **kwargs: Any) -> None:
    """Return no mask, since packed rows need none; refuse padding, which would be attended to."""
    if attention_mask is not None and not bool(attention_mask.all()):
        raise ValueError("attention over packed rows takes no padding: set actor.use_remove_padding: true, or use sdpa")


def compile_layers(model: nn.Module) -> int:
    """Compile each decoder layer's forward in place, before FSDP wraps it; return their number.

    Teacher and student share the line of code by which torch counts graphs. Beyond its limit, 8 by default, layers run
    uncompiled, and a layer that was compiled in the forward but not in its recomputation fails.
    """
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MAX_GRAPHS)
    names = set(getattr(model, "_no_split_modules", None) or ())
    layers = [module for module in model.modules() if type(module).__name__ in names]
    for layer in layers:
        layer.forward = torch.compile(layer.forward, dynamic=True)
    return len(layers)


def keep_activations(share: float) -> None:
    """Let layers that are compiled from now on keep about `share` of what their backward needs and recompute the cheapest."""
    import torch._functorch.config as functorch

    functorch.activation_memory_budget = share


AttentionInterface.register(VARLEN, varlen_attention)
AttentionMaskInterface.register(VARLEN, no_mask)
