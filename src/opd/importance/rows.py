"""Tokens by their rollouts."""

import torch
from torch import Tensor


def places(row_index: Tensor) -> tuple[Tensor, Tensor]:
    """[T] place of each token among those of its row, in their order, and [T] number of tokens of its row."""
    order = row_index.argsort(stable=True)
    _, counts = torch.unique_consecutive(row_index[order], return_counts=True)
    starts = counts.cumsum(0) - counts
    place, size = torch.empty_like(row_index), torch.empty_like(row_index)
    place[order] = torch.arange(len(row_index), device=row_index.device) - starts.repeat_interleave(counts)
    size[order] = counts.repeat_interleave(counts)
    return place, size
