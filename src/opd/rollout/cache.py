"""Key-value memory of the rollout engine: fixed shapes, rows at their own positions, and attention over them."""

from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface
from transformers.cache_utils import Cache

ATTENTION = "opd_rows"
_MIN_KV_LENGTH = 64
_MIN_PROMPT_LENGTH = 16


def kv_bucket(num_tokens: int) -> int:
    """Length of the cache row that holds `num_tokens`: the next power of two, at least 64."""
    return max(_MIN_KV_LENGTH, 1 << (num_tokens - 1).bit_length())


def prompt_bucket(num_tokens: int) -> int:
    """Padded length of a prompt in prefill: the next of 16, 32, 48, 64, then quarter steps between powers of two."""
    step = max(_MIN_PROMPT_LENGTH, (1 << (num_tokens - 1).bit_length()) // 8)
    return -(-num_tokens // step) * step


class PromptCache(Cache):
    """Keeps the keys and values of one prefill, [rows, kv_heads, length, head_dim] a layer, as the model made them."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if layer_idx != len(self.keys):
            raise ValueError(f"layer {layer_idx} wrote to the cache after layer {len(self.keys) - 1}")
        self.keys.append(key_states)
        self.values.append(value_states)
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


class RowCache(Cache):
    """The cache of one decode batch: every row holds one request at its own position.

    keys[layer] and values[layer] are [num_rows, kv_heads, length, head_dim] fp32. Positions beyond a row's own are
    masked; they hold zeros or what an earlier request left, finite either way, so that their weight of exactly zero
    makes their contribution exactly zero.
    """

    def __init__(self, num_rows: int, length: int, layer_shapes: list[tuple[int, int]]) -> None:
        """layer_shapes: (kv_heads, head_dim) of each layer."""
        super().__init__(layers=[])
        self.num_rows, self.length = num_rows, length
        self.keys = [_untouched_zeros(num_rows, heads, length, size) for heads, size in layer_shapes]
        self.values = [_untouched_zeros(num_rows, heads, length, size) for heads, size in layer_shapes]
        self._rows = torch.arange(num_rows)
        self._columns = torch.arange(length)
        self._positions = torch.zeros(num_rows, dtype=torch.int64)

    def set_positions(self, positions: torch.Tensor) -> torch.Tensor:
        """Where the next token of each row goes ([num_rows] int64); returns the additive mask [num_rows, 1, 1, length]."""
        self._positions = positions
        visible = self._columns <= positions[:, None]
        return torch.where(visible, 0.0, float("-inf"))[:, None, None, :]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys[layer_idx][self._rows, :, self._positions] = key_states[:, :, 0]
        self.values[layer_idx][self._rows, :, self._positions] = value_states[:, :, 0]
        return self.keys[layer_idx], self.values[layer_idx]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length

    def fill_row(self, row: int, source: "PromptCache | RowCache", source_row: int, num_tokens: int) -> None:
        """Copy the first `num_tokens` positions of another cache's row into this one's."""
        for layer in range(len(self.keys)):
            self.keys[layer][row, :, :num_tokens] = source.keys[layer][source_row, :, :num_tokens]
            self.values[layer][row, :, :num_tokens] = source.values[layer][source_row, :, :num_tokens]


def _untouched_zeros(*shape: int) -> torch.Tensor:
    """Zeros that take memory only where they are written: numpy leaves zeroing to the operating system, torch does not."""
    return torch.from_numpy(np.zeros(shape, np.float32))


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
    """Attention for transformers' registry: prefill is causal, decode reads the cache under the given mask.

    Args:
        query: [B, heads, Q, D]. key, value: [B, kv_heads, L, D]; heads is a multiple of kv_heads.
        attention_mask: None for prefill (causal, Q = L), else additive [B, 1, 1, L] with Q = 1.

    Returns:
        [B, Q, heads, D] and no attention weights.

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
        # The heads that share a key-value head become its queries: no copy of the cache.
        grouped = query.reshape(batch, kv_heads, heads // kv_heads, head_dim)
        output = attend(grouped, key, value, attn_mask=attention_mask, scale=scaling)
        output = output.reshape(batch, heads, num_queries, head_dim)
    return output.transpose(1, 2).contiguous(), None


AttentionInterface.register(ATTENTION, row_attention)
