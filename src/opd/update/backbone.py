"""What makes a backbone fast on a CUDA device: attention over packed rows that needs no mask, and compiled decoder layers.

transformers' `sdpa` tells packed rows apart by a dense [T, T] mask: its work and memory grow with the square of a
micro-batch's tokens, and no flash kernel takes it. Its flash attention needs a package of its own; the kernel for rows
of unequal length is in torch.
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
    """What a model's forward is told about its packed rows, in transformers' names.

    Args:
        bounds: [B + 1], where each row begins in the packed tokens, and their number.
    """
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
    """Causal attention within each row of one packed batch, by torch's flash kernel (16-bit, CUDA).

    Args:
        query: [1, H, T, d]. key, value: [1, H_kv, T, d], H a multiple of H_kv.
        cu_seq_lens_q: [B + 1] int32 of `packed_arguments`; without it rows begin where `position_ids` [1, T] is 0.

    Returns:
        [1, T, H, d] and no attention weights.

    Raises:
        ValueError: more than one row without packing, or neither bounds nor positions.
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
    """[B + 1] int32 of packed rows; kept for the next layer of the same forward."""
    global _last_bounds
    if _last_bounds is not None and _last_bounds[0]() is position_ids:
        return _last_bounds[1]
    flat = position_ids.flatten()
    starts = (flat == 0).nonzero().flatten()
    bounds = torch.cat([starts, starts.new_tensor([len(flat)])]).to(torch.int32)
    _last_bounds = (weakref.ref(position_ids), bounds)
    return bounds


def no_mask(*args: Any, attention_mask: Tensor | None = None, **kwargs: Any) -> None:
    """transformers asks for a mask: packed rows need none, and padding would be silently attended to."""
    if attention_mask is not None and not bool(attention_mask.all()):
        raise ValueError("attention over packed rows takes no padding: set actor.use_remove_padding: true, or use sdpa")


def compile_layers(model: nn.Module) -> int:
    """Compile each decoder layer's forward in place, before FSDP wraps it; returns their number.

    All layers of a model share one compiled graph with a dynamic number of tokens. FSDP's hooks and gradient
    checkpointing stay outside of it, and parameter names are as before.

    Torch counts graphs by the line of code, which teacher and student share, each with and without gradients, with and
    without FSDP's view of its input. Beyond its default of 8 it runs layers uncompiled, and a layer that was compiled
    in the forward but not in its recomputation fails.
    """
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MAX_GRAPHS)
    names = set(getattr(model, "_no_split_modules", None) or ())
    layers = [module for module in model.modules() if type(module).__name__ in names]
    for layer in layers:
        layer.forward = torch.compile(layer.forward, dynamic=True)
    return len(layers)


def keep_activations(share: float) -> None:
    """Let this process's compiled layers keep about `share` of what their backward needs and recompute the rest.

    The cheapest to recompute go first (elementwise work long before products), which gradient checkpointing of whole
    layers cannot tell apart. Counts for layers compiled from now on, and not under gradient checkpointing.
    """
    import torch._functorch.config as functorch

    functorch.activation_memory_budget = share


AttentionInterface.register(VARLEN, varlen_attention)
AttentionMaskInterface.register(VARLEN, no_mask)
