"""Key-value memory of the rollout engine: fixed shapes, rows at their own positions, and attention over them."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface
from transformers.cache_utils import Cache

ATTENTION = "opd_rows"
Tensors = Sequence[torch.Tensor]
_MIN_PROMPT_LENGTH = 16
_CACHE_LINE_FLOATS = 16


def kv_bucket(num_tokens: int, least: int) -> int:
    """Return the length of the cache row that holds `num_tokens`: the next power of two, at least `least`."""
    return max(least, 1 << (num_tokens - 1).bit_length())


def prompt_bucket(num_tokens: int) -> int:
    """Return the padded length of a prompt in prefill: the next of 16, 32, 48, 64, then quarter steps between powers of two."""
    step = max(_MIN_PROMPT_LENGTH, (1 << (num_tokens - 1).bit_length()) // 8)
    return -(-num_tokens // step) * step


class RowCache(Cache):
    """The cache of one decode batch: every row holds one request at its own position.

    keys[layer] and values[layer] are [num_rows, kv_heads, length, head_dim] fp32. Positions beyond a row's own are
    masked. They hold zeros or the finite values of an earlier request. So their weight of exactly zero makes their contribution
    exactly zero.
    """

    def __init__(self, num_rows: int, length: int, layer_shapes: list[tuple[int, int]]) -> None:
        """Make an empty cache; layer_shapes has (kv_heads, head_dim) of each layer."""
        super().__init__(layers=[])
        self.num_rows, self.length = num_rows, length
        self.keys = [_untouched_zeros(num_rows, heads, length, size) for heads, size in layer_shapes]
        self.values = [_untouched_zeros(num_rows, heads, length, size) for heads, size in layer_shapes]
        self._rows = torch.arange(num_rows)
        self._columns = torch.arange(length)
        self._positions = torch.zeros(num_rows, dtype=torch.int64)
        self._num_used = num_rows

    def set_positions(self, positions: torch.Tensor, num_used: int) -> torch.Tensor:
        """Prepare a step.

        Args:
            positions: [num_rows] int64, where the next token of each row goes.
            num_used: rows from here on are idle, and attention leaves them out.

        Returns:
            The additive mask, [num_used, 1, 1, length].
        """
        self._positions, self._num_used = positions, num_used
        visible = self._columns <= positions[:num_used, None]
        return torch.where(visible, 0.0, float("-inf"))[:, None, None, :]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys[layer_idx][self._rows, :, self._positions] = key_states[:, :, 0]
        self.values[layer_idx][self._rows, :, self._positions] = value_states[:, :, 0]
        return self.keys[layer_idx][: self._num_used], self.values[layer_idx][: self._num_used]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length

    def fill_row(self, row: int, keys: Tensors, values: Tensors, source_row: int, num_tokens: int) -> None:
        """Copy the first `num_tokens` positions of a row of another cache's layers into this one's."""
        for ours, theirs in zip([*self.keys, *self.values], [*keys, *values], strict=True):
            ours[row, :, :num_tokens] = theirs[source_row, :, :num_tokens]


def _untouched_zeros(*shape: int) -> torch.Tensor:
    """Return zeros that take memory only where they are written: numpy leaves zeroing to the operating system, torch does not.

    They begin on a cache line, as torch's own do: BLAS kernels may give other bits at another alignment.
    """
    size = math.prod(shape)
    memory = np.zeros(size + _CACHE_LINE_FLOATS, np.float32)
    start = -memory.ctypes.data // memory.itemsize % _CACHE_LINE_FLOATS
    return torch.from_numpy(memory[start : start + size]).view(shape)


def row_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Return attention for transformers' registry: prefill is causal, decode reads the cache under the given mask.

    Args:
        query: [B, heads, Q, D]. key, value: [U, kv_heads, L, D]; heads is a multiple of kv_heads.
        attention_mask: None for prefill (causal, Q = L, U = B), else additive [U, 1, 1, L] with Q = 1, U <= B.

    Returns:
        [B, Q, heads, D], zero in the idle rows from U on, and no attention weights.

    Raises:
        NotImplementedError: a score modification this function does not have (soft cap, sinks, ...).
    """
    refused = [name for name in ("softcap", "s_aux", "position_bias") if kwargs.get(name) is not None]
    if refused or sliding_window is not None:
        raise NotImplementedError(
            f"the CPU rollout has no attention with {', '.join(refused) or 'a sliding window'}: choose another model"
        )
    batch, heads, num_queries, head_dim = query.shape
    kv_heads = key.shape[1]
    attend = torch.nn.functional.scaled_dot_product_attention
    if attention_mask is None:
        groups = heads // kv_heads
        output = attend(
            query,
            key.repeat_interleave(groups, dim=1),
            value.repeat_interleave(groups, dim=1),
            is_causal=True,
            scale=scaling,
        )
    else:
        # The heads that share a key-value head become its queries: no copy of the cache. The kernel treats each row and
        # key-value head by itself, so that leaving idle rows out changes nothing in the others.
        grouped = query.reshape(batch, kv_heads, heads // kv_heads, head_dim)
        output = torch.zeros_like(grouped)
        output[: len(key)] = attend(grouped[: len(key)], key, value, attn_mask=attention_mask, scale=scaling)
        output = output.reshape(batch, heads, num_queries, head_dim)
    return output.transpose(1, 2).contiguous(), None


AttentionInterface.register(ATTENTION, row_attention)
