"""The workspace of the fused divergence: gradient rows of a group, logits of a chunk, and the storage they share."""

from typing import NamedTuple

import torch
from torch import Tensor

from opd.losses.hopper.plan import RowBytes, TokenGroup
from opd.losses.hopper.row_kernel import Logits


class ChunkBuffers(NamedTuple):
    """Views of one chunk of n tokens."""

    student: Logits
    teacher: Logits
    gradient: Tensor
    """[n, vocab] bf16 of rows that are `stride` long; shares the student's fp16 logits' storage."""


class Buffers:
    """One allocation, cut anew for each group; nothing in it outlives the group.

    Args:
        row: bytes of a token. Without bytes at the side the logits are fp32.
        weight_grad: the fp32 weight gradient whose storage groups `in_weight_grad` use, or None.
    """

    def __init__(
        self,
        groups: list[TokenGroup],
        row: RowBytes,
        *,
        vocab: int,
        stride: int,
        weight_grad: Tensor | None,
        device: torch.device,
    ) -> None:
        self.row, self.vocab, self.stride, self.weight_grad = row, vocab, stride, weight_grad
        self.workspace = torch.empty(max(map(self._bytes, groups)), device=device, dtype=torch.uint8)
        most = max(max(group.sizes) for group in groups)
        self.block_max = torch.empty(2, most, row.side // 8, device=device) if row.side else None

    def _bytes(self, group: TokenGroup) -> int:
        """Return the bytes that the group needs besides a weight gradient that it borrows."""
        own = 0 if group.in_weight_grad else self.row.logits
        return max((stop - group.start) * self.row.gradient + (stop - start) * own for start, stop in group.chunks())

    def _logits_storage(self, group: TokenGroup, stop: int) -> Tensor:
        """Return the bytes for the logits of the chunk that ends at `stop`, later for the hidden states' product."""
        if group.in_weight_grad and self.weight_grad is not None:
            return self.weight_grad.view(-1).view(torch.uint8)
        return self.workspace[(stop - group.start) * self.row.gradient :]

    def gradient(self, group: TokenGroup) -> Tensor:
        """Return [group's tokens, stride] bf16; the row kernel fills it, the columns after the vocabulary with 0."""
        num_bytes = (group.stop - group.start) * self.row.gradient
        return self.workspace[:num_bytes].view(torch.bfloat16).view(-1, self.stride)

    def chunk(self, group: TokenGroup, start: int, stop: int) -> ChunkBuffers:
        """Return views for the tokens from `start` to `stop`, absolute positions within the group."""
        n = stop - start
        kept = self.gradient(group)[start - group.start : stop - group.start, : self.vocab]
        storage = self._logits_storage(group, stop)[: n * self.row.logits]
        if self.block_max is None:
            both = storage.view(torch.float32).view(2, n, self.stride)[:, :, : self.vocab]
            return ChunkBuffers(Logits(both[0], None), Logits(both[1], None), kept)
        teacher = storage.view(torch.float16).view(n, self.stride)[:, : self.vocab]
        student = Logits(kept.view(torch.float16), self.block_max[0, :n])
        return ChunkBuffers(student, Logits(teacher, self.block_max[1, :n]), kept)

    def hidden_rows(self, group: TokenGroup, width: int) -> int:
        """Return the rows of `hidden_product` for which there is room when the group's gradient is whole."""
        return self._logits_storage(group, group.stop).nbytes // (width * 4)

    def hidden_product(self, group: TokenGroup, num_rows: int, width: int) -> Tensor:
        """Return [num_rows, width] fp32, where logits were (a chunk's are larger, but for a tiny vocabulary)."""
        storage = self._logits_storage(group, group.stop)
        if storage.nbytes < num_rows * width * 4:
            return torch.empty(num_rows, width, device=storage.device)
        return storage[: num_rows * width * 4].view(torch.float32).view(num_rows, width)
