"""The fused divergence by ranks that have a slice of both heads each and see every rank's tokens.

A chunk is the same number of each rank's tokens, rank after rank. Its logits, their gradient and the products are of the
rank's slice; between the two reads of the logits the ranks exchange NUM_SUMS numbers a token (and NUM_MOMENTS more for
jsd), and the parts of the gradient of hidden states are summed behind their product.
"""

import functools
from typing import NamedTuple

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup

from opd.losses.cuda.buffers import ChunkBuffers
from opd.losses.cuda.plan import RowBytes, TokenGroup
from opd.losses.cuda.row_kernel import (
    NUM_MERGED,
    NUM_MOMENTS,
    NUM_STATS,
    NUM_SUMS,
    GradientRows,
    Part,
    divergence_rows,
    merge_rows,
)
from opd.losses.cuda.run import Attempt, Call, Forward, Inputs, Result, first_attempt, run_attempts


class VocabShare(NamedTuple):
    """Which part of both heads this rank has."""

    group: ProcessGroup
    """The ranks, ordered as their slices."""
    first_entry: int


def run_sliced(inputs: Inputs, call: Call, share: VocabShare, *, need_hidden: bool, need_weight: bool) -> Result:
    """`run` over the ranks of a group, collective; the heads in `inputs` are this rank's slices, the tokens its own."""
    make = functools.partial(SlicedForward, inputs, call, share, need_hidden=need_hidden, need_weight=need_weight)
    return run_attempts(make, first_attempt(call))


class SlicedForward(Forward):
    """One attempt over the tokens of all ranks, in the order of the chunks."""

    def __init__(
        self,
        inputs: Inputs,
        call: Call,
        share: VocabShare,
        attempt: Attempt,
        *,
        need_hidden: bool,
        need_weight: bool,
    ) -> None:
        super().__init__(inputs, call, attempt, need_hidden=need_hidden, need_weight=need_weight)
        self.share = share
        self.num_ranks, self.rank = distributed.get_world_size(share.group), distributed.get_rank(share.group)
        self.num_own = self.num_tokens
        self.most = self._most()
        self.num_tokens = self.num_ranks * self.most
        self.stats = torch.empty(self.num_tokens, NUM_STATS, device=self.device)
        self.chunks: list[tuple[int, int]] = []
        self.token_ids: Tensor | None = None
        self.students: Tensor | None = None

    def _most(self) -> int:
        """Tokens of the rank that has most: the ranks' plans must be the same."""
        if self.num_ranks == 1:
            return self.num_own
        most = torch.tensor(self.num_own, device=self.device)
        distributed.all_reduce(most, op=distributed.ReduceOp.MAX, group=self.share.group)
        return int(most)

    def _groups(self, num_tokens: int, row: RowBytes) -> list[TokenGroup]:
        """Planned by one rank's tokens, then of all of them."""
        width, depth = self.inputs.student_weight.shape[1], self.inputs.teacher_weight.shape[1]
        gathered = self.num_ranks > 1
        element = self.inputs.student_weight.element_size()
        of_ranks = RowBytes(
            gradient=self.num_ranks * (row.gradient + gathered * element * width),
            logits=self.num_ranks * row.logits,
            side=self.num_ranks * (row.side + gathered * element * depth) + gathered * 4 * width,
        )
        own = super()._groups(self.most, of_ranks)
        self.chunks = [chunk for group in own for chunk in group.chunks()]
        self.weights = self._laid_out(self.inputs.token_weights.float(), 0.0)
        if self.inputs.token_ids is not None:
            self.token_ids = self._laid_out(self.inputs.token_ids, -1)
        return [group.times(self.num_ranks) for group in own]

    def _laid_out(self, values: Tensor, missing: float) -> Tensor:
        """[T] of this rank -> [num_tokens] of all, in the order of the chunks; `missing` where a rank has fewer."""
        if self.num_ranks == 1:
            return values
        own = values.new_full((self.most,), missing)
        own[: self.num_own] = values
        everybodys = self._everybodys(own)
        return torch.cat([everybodys[:, start:stop].reshape(-1) for start, stop in self.chunks])

    def _own_stats(self) -> Tensor:
        if self.num_ranks == 1:
            return self.stats
        parts = [self.stats[:0]]
        for start, stop in self.chunks:
            first = start * self.num_ranks + self.rank * (stop - start)
            parts.append(self.stats[first : first + max(0, min(stop, self.num_own) - start)])
        return torch.cat(parts)

    def _everybodys(self, values: Tensor) -> Tensor:
        """[...] of this rank, the same shape on every one -> [ranks, ...]."""
        if self.num_ranks == 1:
            return values.unsqueeze(0)
        out = values.new_empty(self.num_ranks, *values.shape)
        distributed.all_gather_into_tensor(out, values.contiguous(), group=self.share.group)
        return out

    def _gathered(self, hidden: Tensor, dtype: torch.dtype, start: int, stop: int, out: Tensor | None = None) -> Tensor:
        """Everybody's hidden states of the chunk [start, stop) in all ranks' positions; 0 where a rank has fewer."""
        here = hidden[start // self.num_ranks : stop // self.num_ranks].to(dtype).contiguous()
        missing = (stop - start) // self.num_ranks - len(here)
        if missing:
            here = torch.cat([here, here.new_zeros(missing, here.shape[1])])
        if out is None:
            out = here.new_empty(stop - start, here.shape[1])
        distributed.all_gather_into_tensor(out, here, group=self.share.group)
        return out

    def _teacher_hidden(self, start: int, stop: int) -> Tensor:
        if self.num_ranks == 1:
            return super()._teacher_hidden(start, stop)
        return self._gathered(self.inputs.teacher_hidden, self.inputs.teacher_weight.dtype, start, stop)

    def _student_hidden(self, group: TokenGroup, start: int, stop: int) -> Tensor:
        if self.num_ranks == 1:
            return super()._student_hidden(group, start, stop)
        weight = self.inputs.student_weight
        if start == group.start:
            self.students = weight.new_empty(group.stop - group.start, weight.shape[1])
        assert self.students is not None
        out = self.students[start - group.start : stop - group.start]
        return self._gathered(self.inputs.student_hidden, weight.dtype, start, stop, out)

    def _group_hidden(self, group: TokenGroup) -> Tensor:
        if self.students is None:
            return super()._group_hidden(group)
        students, self.students = self.students, None
        return students

    def _rows(self, chunk: ChunkBuffers, start: int, stop: int, gradient: GradientRows | None) -> None:
        call, num_rows = self.call, stop - start
        ids = None if self.token_ids is None else self.token_ids[start:stop]
        sums, merged = (torch.empty(num_rows, count, device=self.device) for count in (NUM_SUMS, NUM_MERGED))
        rows = functools.partial(
            divergence_rows, chunk.student, chunk.teacher, call.kind, beta=call.beta, temperature=call.temperature
        )
        merge = functools.partial(
            merge_rows,
            kind=call.kind,
            beta=call.beta,
            temperature=call.temperature,
            merged=merged,
            stats=self.stats[start:stop],
        )
        rows(part=Part.SUMS, token_ids=ids, first_entry=self.share.first_entry, out=sums)
        everybodys = self._everybodys(sums)
        merge(everybodys, None)
        if call.kind == "jsd":
            moments = torch.empty(num_rows, NUM_MOMENTS, device=self.device)
            rows(part=Part.MOMENTS, out=moments, merged=merged)
            merge(everybodys, self._everybodys(moments))
        if gradient is not None:
            rows(part=Part.GRADIENT, gradient=gradient, merged=merged)

    def _of_all_slices(self, numbers: Tensor) -> Tensor:
        return self._everybodys(numbers).flatten(0, 1)

    def _keep_hidden(self, product: Tensor, start: int, stop: int) -> None:
        if self.num_ranks == 1:
            super()._keep_hidden(product, start, stop)
            return
        first, num_rows = start // self.num_ranks, (stop - start) // self.num_ranks
        own = product.new_empty(num_rows, product.shape[1])
        distributed.reduce_scatter_tensor(own, product, group=self.share.group)
        here = max(0, min(num_rows, self.num_own - first))
        super()._keep_hidden(own[:here], first, first + here)
