"""The workspace of the fused divergence: gradient rows of a group, logits of a chunk, and the storage they share."""

from typing import NamedTuple

import torch
from torch import Tensor

from opd.losses.hopper.plan import LogitsPrecision, RowBytes, TokenGroup
from opd.losses.hopper.row_kernel import Logits, new_gradient_stats


class ChunkBuffers(NamedTuple):
    """Views of one chunk of n tokens."""

    student: Logits
    teacher: Logits
    gradient: Tensor | None
    """[n, vocab] of rows that are `stride` long, None where no gradient is made; shares the student's fp16 logits' storage."""
    gradient_stats: Tensor | None
    """[n, ...] as of `new_gradient_stats`"""


class Buffers:
    """One allocation, cut anew for each group; nothing in it outlives the group.

    Args:
        weight_grad: the fp32 weight gradient whose storage groups `in_weight_grad` use, or None.
        gradient_dtype: of the stored gradient of the logits.
        keeps_gradient: False for statistics only.
    """

    def __init__(
        self,
        groups: list[TokenGroup],
        *,
        vocab: int,
        stride: int,
        num_blocks: int,
        precision: LogitsPrecision,
        gradient_dtype: torch.dtype,
        keeps_gradient: bool,
        weight_grad: Tensor | None,
        device: torch.device,
    ) -> None:
        self.vocab, self.stride = vocab, stride
        self.is_fp16 = precision == "fp16"
        self.gradient_dtype = gradient_dtype
        self.keeps_gradient = keeps_gradient
        self.weight_grad = weight_grad
        self.row = RowBytes.of(stride, num_blocks, precision)
        self.workspace = torch.empty(max(map(self._bytes, groups)), device=device, dtype=torch.uint8)
        most = max(max(g.sizes) for g in groups)
        self.block_max = torch.empty(2, most, num_blocks, device=device) if self.is_fp16 else None
        self.gradient_stats = (
            new_gradient_stats(most, vocab, is_fp32=not self.is_fp16, device=device) if keeps_gradient else None
        )

    def _bytes(self, group: TokenGroup) -> int:
        """What the group needs beside a weight gradient that it borrows."""
        own_logits = 0 if group.in_weight_grad else self.row.logits
        return max(self._kept_bytes(stop - group.start) + (stop - start) * own_logits for start, stop in group.chunks())

    def _kept_bytes(self, num_rows: int) -> int:
        """fp16 logits of the student need the gradient's rows even where no gradient is made."""
        return num_rows * self.row.gradient if self.keeps_gradient or self.is_fp16 else 0

    def _logits_storage(self, group: TokenGroup, stop: int) -> Tensor:
        """Bytes that hold the logits of the chunk that ends at `stop`, and behind the last one's the hidden states' product."""
        if group.in_weight_grad and self.weight_grad is not None:
            return self.weight_grad.view(-1).view(torch.uint8)
        return self.workspace[self._kept_bytes(stop - group.start) :]

    def gradient(self, group: TokenGroup) -> Tensor:
        """[group's tokens, stride]; the row kernel fills it chunk by chunk, the columns behind the vocabulary with 0."""
        return (
            self.workspace[: self._kept_bytes(group.stop - group.start)].view(self.gradient_dtype).view(-1, self.stride)
        )

    def chunk(self, group: TokenGroup, start: int, stop: int) -> ChunkBuffers:
        """Views for the tokens from `start` to `stop`, absolute positions within the group."""
        n = stop - start
        kept = self.gradient(group)[start - group.start : stop - group.start, : self.vocab]
        storage = self._logits_storage(group, stop)[: n * self.row.logits]
        if self.block_max is not None:
            student = Logits(kept.view(torch.float16), self.block_max[0, :n])
            teacher = Logits(storage.view(torch.float16).view(n, self.stride)[:, : self.vocab], self.block_max[1, :n])
        else:
            both = storage.view(torch.float32).view(2, n, self.stride)[:, :, : self.vocab]
            student, teacher = Logits(both[0], None), Logits(both[1], None)
        if self.gradient_stats is None:
            return ChunkBuffers(student, teacher, None, None)
        return ChunkBuffers(student, teacher, kept, self.gradient_stats[:n])

    def hidden_rows(self, group: TokenGroup, width: int) -> int:
        """Rows of `hidden_product` for which there is room when the group's gradient is whole."""
        return self._logits_storage(group, group.stop).nbytes // (width * 4)

    def hidden_product(self, group: TokenGroup, num_rows: int, width: int) -> Tensor:
        """[num_rows, width] fp32, where logits were (a chunk's are larger, but for a tiny vocabulary)."""
        storage = self._logits_storage(group, group.stop)
        if storage.nbytes < num_rows * width * 4:
            return torch.empty(num_rows, width, device=storage.device)
        return storage[: num_rows * width * 4].view(torch.float32).view(num_rows, width)
