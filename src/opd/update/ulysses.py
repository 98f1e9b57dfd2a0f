"""Ulysses sequence parallelism: ranks that share a packed sequence, and attention that trades their tokens for heads.

A rank holds a slice of the tokens everywhere but inside attention, where it holds all tokens and a slice of the heads
(https://arxiv.org/abs/2309.14509). verl slices the inputs; its own exchange sits inside the flash-attn package's call,
which neither lock nor image has, ours around the attention functions that need no package.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig
from verl.utils.ulysses import get_ulysses_sequence_parallel_group

from opd.batch import LossPositions
from opd.errors import Unfit
from opd.update.backbone import VARLEN, no_mask, packed_arguments, varlen_attention

SHARED = {VARLEN: "varlen_shared", "sdpa": "sdpa_shared"}
"""Attention implementation -> its name among ranks that share a sequence."""

_WHOLE_SEQUENCE_LAYERS = ("full_attention", "sliding_attention")


@dataclass(frozen=True, kw_only=True)
class Slice:
    """This rank's tokens of a packed micro-batch: the `rank`-th of `size` pieces of `num_tokens` tokens each."""

    group: ProcessGroup
    rank: int
    size: int
    num_tokens: int

    def holders(self, flat_index: Tensor) -> Tensor:
        """[N] places in the packed tokens -> [N] rank of the group that holds each."""
        return flat_index // self.num_tokens

    def select(self, found: LossPositions) -> tuple[LossPositions, Tensor]:
        """The positions that this rank holds, counted from its own first token, and [N] bool which they are."""
        own = self.holders(found.flat_index) == self.rank
        mine = LossPositions(*(field[own] for field in found))
        return mine._replace(flat_index=mine.flat_index - self.rank * self.num_tokens), own


class _Exchange(torch.autograd.Function):
    """[n, ...] -> [n, ...]: piece i goes to rank i of the group; gradients go the same way back."""

    @staticmethod
    def forward(ctx: Any, pieces: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return _all_to_all(pieces, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _all_to_all(gradients[0], ctx.group), None


def _all_to_all(pieces: Tensor, group: ProcessGroup) -> Tensor:
    received = torch.empty_like(pieces, memory_format=torch.contiguous_format)
    distributed.all_to_all_single(received, pieces.contiguous(), group=group)
    return received


def gather_tokens(query: Tensor, key: Tensor, value: Tensor, group: ProcessGroup) -> tuple[Tensor, Tensor, Tensor]:
    """All tokens of this rank's share of the heads, in one exchange.

    With fewer key heads than ranks each is sent to the ranks whose query heads read it.

    Args:
        query: [1, H, T / n, d]. key, value: [1, H_kv, T / n, d]. H a multiple of n, and H_kv of n or n of H_kv.

    Returns:
        [1, H / n, T, d] and twice [1, max(H_kv / n, 1), T, d].
    """
    size = distributed.get_world_size(group)
    repeats = max(1, size // key.shape[1])
    shares = [query[0]] + [states[0].repeat_interleave(repeats, dim=0) for states in (key, value)]
    heads = [states.shape[0] // size for states in shares]
    pieces = torch.cat([states.unflatten(0, (size, -1)) for states in shares], dim=1)  # [n, heads, T / n, d]
    received = _Exchange.apply(pieces, group).transpose(0, 1).flatten(1, 2)
    q, k, v = (states[None] for states in received.split(heads))
    return q, k, v


def scatter_tokens(out: Tensor, group: ProcessGroup) -> Tensor:
    """[1, T, H / n, d] of this rank's heads -> [1, T / n, H, d] of its tokens."""
    pieces = out[0].unflatten(0, (distributed.get_world_size(group), -1))
    received: Tensor = _Exchange.apply(pieces, group)
    return received.transpose(0, 1).flatten(1, 2)[None]


def causal_within_rows(bounds: Tensor, num_tokens: int) -> Tensor:
    """[1, 1, T, T] bool, True where a token of a packed batch may look: at its own row, up to itself.

    Args:
        bounds: [B + 1], where each row begins, and their number of tokens.
    """
    place = torch.arange(num_tokens, device=bounds.device)
    row = torch.bucketize(place, bounds.to(place.dtype), right=True)
    return ((row[:, None] == row) & (place[:, None] >= place))[None, None]


def packed_sdpa(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    row_mask: Tensor,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each row of one packed batch by its `causal_within_rows`, on any device in any dtype.

    Args:
        query: [1, H, T, d]. key, value: [1, H_kv, T, d], H a multiple of H_kv.

    Returns:
        [1, T, H, d] and no attention weights.
    """
    if sliding_window is not None:
        place = torch.arange(query.shape[2], device=query.device)
        row_mask = row_mask & (place[:, None] - place < sliding_window)
    grouped = query.shape[1] != key.shape[1]
    out = scaled_dot_product_attention(query, key, value, attn_mask=row_mask, scale=scaling, enable_gqa=grouped)
    return out.transpose(1, 2), None


def _exchanging(attention: Callable[..., tuple[Tensor, None]]) -> Callable[..., tuple[Tensor, None]]:
    """`attention` over all tokens of a share of the heads, called with all heads of a slice of the tokens."""

    def shared(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: None, **kwargs: Any
    ) -> tuple[Tensor, None]:
        group = get_ulysses_sequence_parallel_group()
        if group is None or kwargs.get("cu_seq_lens_q") is None:
            raise ValueError(
                "ulysses_sequence_parallel_size > 1: attention needs the rows' bounds in the whole sequence and the "
                "group that shares it; call the model through its engine's train_mode or eval_mode"
            )
        q, k, v = gather_tokens(query, key, value, group)
        out, _ = attention(module, q, k, v, None, **kwargs)
        return scatter_tokens(out, group), None

    # A compiled layer breaks here: no collective is ever planned into, or recomputed by, a graph.
    uncompiled: Callable[..., tuple[Tensor, None]] = torch.compiler.disable(shared)
    return uncompiled


def shared_arguments(name: str, bounds: Tensor, num_tokens: int) -> dict[str, Any]:
    """What the attention `name` is told about the rows of the whole sequence; nothing for one that reads positions.

    Args:
        bounds: [B + 1], where each row begins in the packed tokens of all ranks, padding a row of its own.
        num_tokens: of all ranks.
    """
    if name not in (VARLEN, *SHARED.values()):
        return {}
    mask = {"row_mask": causal_within_rows(bounds, num_tokens)} if name == SHARED["sdpa"] else {}
    return packed_arguments(bounds) | mask


def check_shareable(config: PretrainedConfig, num_ranks: int, name: str) -> None:
    """Refuse a model whose attention `num_ranks` ranks cannot share.

    Raises:
        Unfit: heads that do not divide, an attention without an exchange, or layers that are not attention over tokens.
    """
    what = f"{name}: ulysses_sequence_parallel_size={num_ranks}"
    implementation = config._attn_implementation
    if implementation not in SHARED:
        raise Unfit(f"{what} needs attn_implementation {' or '.join(SHARED)}, got {implementation}")
    heads, key_heads = config.num_attention_heads, config.num_key_value_heads
    if heads % num_ranks or (key_heads % num_ranks and num_ranks % key_heads):
        raise Unfit(
            f"{what} does not divide its {heads} attention heads ({key_heads} for keys and values): use a size that "
            "divides num_attention_heads, and that divides num_key_value_heads or is a multiple of it"
        )
    others = sorted(set(getattr(config, "layer_types", None) or ()) - set(_WHOLE_SEQUENCE_LAYERS))
    if others or hasattr(config, "vision_config"):
        raise Unfit(f"{what}: only attention layers over text can be shared, it has {', '.join(others) or 'images'}")


for _alone, _attention in ((VARLEN, varlen_attention), ("sdpa", packed_sdpa)):
    AttentionInterface.register(SHARED[_alone], _exchanging(_attention))
    AttentionMaskInterface.register(SHARED[_alone], no_mask)
