"""Attention over packed rows without a mask, alone or among ranks that share a sequence.

transformers' `sdpa` needs a dense [T, T] mask for packed rows, and its flash attention a package of its own. Sequences are
shared by Ulysses (https://arxiv.org/abs/2309.14509): a rank has a slice of the tokens, and in attention a slice of the heads.
verl slices the inputs; its own exchange needs the flash-attn package.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup
from torch.distributed.nn.functional import all_to_all_single
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig
from verl.utils.ulysses import get_ulysses_sequence_parallel_group

from opd.batch.rows import LossPositions
from opd.errors import Unfit

VARLEN = "varlen"
"""Name of the attention implementation that this module registers with transformers."""
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
        """Return the rank of the group that holds each place [N] of the packed tokens."""
        return flat_index // self.num_tokens

    def select(self, found: LossPositions) -> tuple[LossPositions, Tensor]:
        """Return the positions on this rank, counted from its own first token, and [N] bool which they are."""
        own = self.holders(found.flat_index) == self.rank
        mine = LossPositions(*(field[own] for field in found))
        return mine._replace(flat_index=mine.flat_index - self.rank * self.num_tokens), own


def row_arguments(name: str, bounds: Tensor, num_tokens: int) -> dict[str, Any]:
    """Return the arguments by which the attention `name` knows the rows of the whole sequence, [B + 1] bounds of all ranks."""
    if name not in (VARLEN, *SHARED.values()):
        return {}
    bounds = bounds.to(torch.int32)
    mask = {"row_mask": causal_within_rows(bounds, num_tokens)} if name == SHARED["sdpa"] else {}
    return {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds} | mask


def varlen_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    cu_seq_lens_q: Tensor,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Return [1, T, H, d]: causal attention within each row of a packed batch by torch's flash kernel (16-bit, CUDA)."""
    from torch.nn.attention.varlen import varlen_attn

    q, k, v = (states[0].transpose(0, 1) for states in (query, key, value))
    longest = q.shape[0]  # a bound: reading the longest row back would wait for the device
    window = (-1, 0) if sliding_window is None else (sliding_window - 1, 0)
    out: Any = varlen_attn(q, k, v, cu_seq_lens_q, cu_seq_lens_q, longest, longest, scale=scaling, window_size=window)
    return out[None], None


def causal_within_rows(bounds: Tensor, num_tokens: int) -> Tensor:
    """Return [1, 1, T, T] bool, True for pairs of a token and an earlier one of its row; `bounds` are [B + 1]."""
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
    """Return [1, T, H, d]: causal attention within each row by `causal_within_rows`, on any device in any dtype."""
    if sliding_window is not None:
        place = torch.arange(query.shape[2], device=query.device)
        row_mask = row_mask & (place[:, None] - place < sliding_window)
    grouped = query.shape[1] != key.shape[1]
    out = scaled_dot_product_attention(query, key, value, attn_mask=row_mask, scale=scaling, enable_gqa=grouped)
    return out.transpose(1, 2), None


def _exchange(pieces: Tensor, group: ProcessGroup) -> Tensor:
    """Send piece i of [n, ...] to rank i of the group; gradients go back the same way."""
    pieces = pieces.contiguous()
    received: Tensor = all_to_all_single(torch.empty_like(pieces), pieces, group=group)
    return received


def _exchanging(attention: Callable[..., tuple[Tensor, None]]) -> Callable[..., tuple[Tensor, None]]:
    """Return `attention` over a share of the heads of all T tokens, called with all heads of a slice of the tokens."""

    def shared(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: None, **kwargs: Any
    ) -> tuple[Tensor, None]:
        group = get_ulysses_sequence_parallel_group()  # set by the engine's train_mode and eval_mode
        assert group is not None
        size = distributed.get_world_size(group)
        # With fewer key heads than ranks each goes to the ranks whose query heads read it.
        repeats = max(1, size // key.shape[1])
        states = [query[0], *(each[0].repeat_interleave(repeats, dim=0) for each in (key, value))]
        pieces = torch.cat([each.unflatten(0, (size, -1)) for each in states], dim=1)  # [n, heads, T / n, d]
        received = _exchange(pieces, group).transpose(0, 1).flatten(1, 2)
        q, k, v = received.split([len(each) // size for each in states])
        out, _ = attention(module, q[None], k[None], v[None], None, **kwargs)
        received = _exchange(out[0].unflatten(0, (size, -1)), group)
        return received.transpose(0, 1).flatten(1, 2)[None], None

    # A compiled layer breaks here: no collective is ever planned into, or recomputed by, a graph.
    uncompiled: Callable[..., tuple[Tensor, None]] = torch.compiler.disable(shared)
    return uncompiled


def check_shareable(config: PretrainedConfig, num_ranks: int, name: str) -> None:
    """Refuse a model whose attention `num_ranks` ranks cannot share."""
    what = f"{name}: ulysses_sequence_parallel_size={num_ranks}"
    if config._attn_implementation not in SHARED:
        raise Unfit(f"{what} needs attn_implementation {' or '.join(SHARED)}, got {config._attn_implementation}")
    heads, key_heads = config.num_attention_heads, config.num_key_value_heads
    if heads % num_ranks or (key_heads % num_ranks and num_ranks % key_heads):
        raise Unfit(
            f"{what} does not divide its {heads} attention heads ({key_heads} for keys and values). Use a size that "
            "divides num_attention_heads, and that divides num_key_value_heads or is a multiple of it"
        )
    others = sorted(set(getattr(config, "layer_types", None) or ()) - set(_WHOLE_SEQUENCE_LAYERS))
    if others or hasattr(config, "vision_config"):
        raise Unfit(f"{what}: only attention layers over text can be shared, it has {', '.join(others) or 'images'}")


_FORMS = {
    VARLEN: varlen_attention,
    SHARED[VARLEN]: _exchanging(varlen_attention),
    SHARED["sdpa"]: _exchanging(packed_sdpa),
}
for _name, _attention in _FORMS.items():
    AttentionInterface.register(_name, _attention)
    AttentionMaskInterface.register(_name, lambda *args, **kwargs: None)  # packed rows need no mask
