"""The divergence by ranks that share both heads: each has a slice of the vocabulary and sees every rank's tokens."""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from opd.losses.chunked import check_arguments
from opd.losses.cuda.plan import LogitsPrecision
from opd.losses.divergence import DivergenceKind, check_divergence, compute_dtype
from opd.losses.fused import MAX_EXPECTED_ERROR, Backend, choose_backend, fused_call, fused_output
from opd.losses.output import DivergenceOutput
from opd.losses.padded_head import PaddedHead, accumulate, padded_entries
from opd.losses.rows import row_statistics

# Tensors of a chunk's size that are alive at once: both sides' log-probabilities, probabilities, ratio, gradient, two more.
_CHUNK_TENSORS = 8
# A logit's gradient is a probability times a difference of log ratios: fp16 keeps its digits only when scaled up.
_GRADIENT_SCALE = {torch.float16: 2.0**10}


def vocab_shard(vocab: int, rank: int, num_ranks: int) -> slice:
    """The rank's share of the first `vocab` entries; the shares follow each other and differ by one entry at most.

    Raises:
        ValueError: there are fewer entries than ranks.
    """
    if vocab < num_ranks:
        raise ValueError(f"vocab={vocab}: {num_ranks} ranks cannot share fewer entries than they are")
    return slice(vocab * rank // num_ranks, vocab * (rank + 1) // num_ranks)


def chunk_rows(workspace_gib: float, shard_entries: int) -> int:
    """Tokens (of all ranks together) whose rows of one slice fit into a workspace."""
    return max(1, int(workspace_gib * 2**30) // (_CHUNK_TENSORS * 4 * shard_entries))


def vocab_parallel_divergence(
    student_hidden: Tensor,
    student_weight: Tensor,
    teacher_hidden: Tensor,
    teacher_weight: Tensor,
    kind: DivergenceKind,
    *,
    vocab: int,
    group: ProcessGroup,
    token_weights: Tensor,
    beta: float,
    temperature: float,
    chunk_size: int,
    workspace_gib: float,
    token_ids: Tensor | None = None,
    precision: LogitsPrecision = "fp16",
    max_expected_error: float = MAX_EXPECTED_ERROR,
    backend: Backend | None = None,
) -> DivergenceOutput:
    """`chunked_divergence` over ranks that hold a slice of both heads each: exact, and collective over the group.

    Chunk by chunk the ranks exchange hidden states (each rank then multiplies everybody's by its slice), a few numbers a
    token (the logits' maximum, the sum of exponentials, parts of divergence, entropies and gradient), and the parts of
    the gradient of hidden states, which each rank gets summed for its own tokens. The gradient of a slice is complete:
    it sums over the tokens of all ranks. Ranks may have different numbers of tokens, none included.

    The gradients are made in the forward and scaled in the backward by the incoming gradient of the *own* loss sum, which
    must therefore be the same number on every rank of the group (a factor common to all, as for a global mean).

    Where `head_divergence` has its fused form, so has this: products, kernels, storage and memory are the same ones over
    the rank's slice and the tokens of all ranks, and a head that is a leaf may ask for its gradient in fp32. Elsewhere
    16-bit heads on a CUDA device multiply in 16 bits with fp32 sums and logits, and round the logits' gradient to the head's
    dtype; everything else is computed in fp32, or in fp64 where an input is.

    Args:
        student_hidden: [T, d_S] of this rank's tokens; T may differ from rank to rank.
        student_weight: [V_r, d_S], the rank's slice of the head (`vocab_shard`).
        teacher_hidden: [T, d_T]; receives no gradient.
        teacher_weight: [V_r, d_T], the same slice; receives no gradient.
        vocab: entries that count, over all slices.
        group: the ranks, ordered as their slices.
        chunk_size: tokens of all ranks together whose rows exist at once in the plain form; the same on every rank.
        workspace_gib: memory of the fused form for a slice's logits and their gradient, and for what it gathers.
        precision, max_expected_error, backend: as of `head_divergence`, the same on every rank.

    Returns:
        The output for this rank's tokens.

    Raises:
        ValueError: shapes that do not match, an undefined divergence, or as of `head_divergence`.
    """
    check_divergence(kind, beta, temperature)  # of the exact ones
    check_arguments(kind, beta, temperature, chunk_size, (student_hidden, teacher_hidden, token_weights, token_ids))
    shard = vocab_shard(vocab, distributed.get_rank(group), distributed.get_world_size(group))
    for name, weight in (("student_weight", student_weight), ("teacher_weight", teacher_weight)):
        if len(weight) != shard.stop - shard.start:
            raise ValueError(
                f"{name}: {len(weight)} entries, but this rank's slice of {vocab} is {shard.start} to {shard.stop}; take "
                "it by vocab_shard"
            )
    if choose_backend(student_weight, teacher_weight, backend) == "fused":
        from opd.losses.cuda.sliced import VocabShare, run_sliced

        of_slice = fused_call(
            kind=kind,
            beta=beta,
            temperature=temperature,
            vocab=len(student_weight),
            workspace_gib=workspace_gib,
            precision=precision,
            max_expected_error=max_expected_error,
        )
        heads = (student_hidden, student_weight, teacher_hidden, teacher_weight)
        form = functools.partial(run_sliced, call=of_slice, share=VocabShare(group, shard.start))
        return fused_output(form, heads, token_weights, token_ids, vocab)
    call = _Call(kind, beta, temperature, chunk_size, vocab, shard.start, group, torch.is_grad_enabled())
    ids = token_weights.new_full(token_weights.shape, -1, dtype=torch.int64) if token_ids is None else token_ids
    loss_sum, stats, nonfinite = _VocabParallel.apply(
        student_hidden, student_weight, teacher_hidden, teacher_weight, token_weights.detach(), ids, call
    )
    return DivergenceOutput.of(loss_sum, stats, nonfinite, token_ids, vocab)


class _Call(NamedTuple):
    """The arguments of one call that are no tensors."""

    kind: DivergenceKind
    beta: float
    temperature: float
    chunk_size: int
    vocab: int
    first_entry: int
    group: ProcessGroup
    with_gradient: bool


class _VocabParallel(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        student_hidden: Tensor,
        student_weight: Tensor,
        teacher_hidden: Tensor,
        teacher_weight: Tensor,
        token_weights: Tensor,
        token_ids: Tensor,
        call: _Call,
    ) -> tuple[Tensor, ...]:
        need_hidden, need_weight = (call.with_gradient and needed for needed in ctx.needs_input_grad[:2])
        with torch.autocast(student_hidden.device.type, enabled=False):
            run = _Run(student_hidden, student_weight, teacher_hidden, teacher_weight, token_weights, token_ids, call)
            run.all_chunks(need_hidden=need_hidden, need_weight=need_weight)
        grad_weight = None if run.grad_weight is None else run.grad_weight[: len(student_weight)]
        ctx.gradients = (run.grad_hidden, grad_weight)
        ctx.weight_dtype = student_weight.dtype
        ctx.mark_non_differentiable(run.stats, run.nonfinite)
        ctx.set_materialize_grads(False)
        return (run.stats[0] * token_weights).sum(), run.stats, run.nonfinite

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        grad_loss = grad_outputs[0]
        if grad_loss is None:
            return (None,) * 7
        (grad_hidden, grad_weight), ctx.gradients = ctx.gradients, (None, None)
        if grad_hidden is not None:
            grad_hidden = grad_hidden.mul_(grad_loss.to(grad_hidden.dtype))
        if grad_weight is not None:
            grad_weight = grad_weight.mul_(grad_loss.to(grad_weight.dtype)).to(ctx.weight_dtype)
        return grad_hidden, grad_weight, None, None, None, None, None


class _Run:
    """One forward: the loop over chunks of everybody's tokens."""

    def __init__(
        self,
        student_hidden: Tensor,
        student_weight: Tensor,
        teacher_hidden: Tensor,
        teacher_weight: Tensor,
        token_weights: Tensor,
        token_ids: Tensor,
        call: _Call,
    ) -> None:
        self.dtype = compute_dtype(student_hidden, student_weight, teacher_hidden, teacher_weight)
        halves = (torch.bfloat16, torch.float16)
        self.in_halves = student_hidden.device.type == "cuda" and student_weight.dtype in halves
        self.call = call
        self.student = (student_hidden, self._head(student_weight))
        self.teacher = (teacher_hidden, self._head(teacher_weight))
        self.token_weights, self.token_ids = token_weights, token_ids
        self.stats = torch.zeros(5, len(student_hidden), dtype=self.dtype, device=student_hidden.device)
        self.nonfinite = torch.zeros(len(student_hidden), dtype=torch.bool, device=student_hidden.device)
        self.grad_hidden: Tensor | None = None
        self.grad_weight: Tensor | None = None  # [padded_entries(V_r), d_S]

    def _head(self, weight: Tensor) -> PaddedHead:
        stays = self.in_halves and weight.dtype in (torch.bfloat16, torch.float16)
        return PaddedHead(weight if stays else weight.to(self.dtype))

    def all_chunks(self, *, need_hidden: bool, need_weight: bool) -> None:
        hidden, head = self.student
        if need_hidden:
            self.grad_hidden = torch.zeros_like(hidden)
        if need_weight:
            self.grad_weight = hidden.new_zeros(padded_entries(head.entries), head.width, dtype=self.dtype)
        for rows in self._chunks():
            self._chunk(rows)

    def _chunks(self) -> Iterator[slice]:
        """Own tokens of each chunk; as many chunks as the rank with the most tokens needs, empty ones where it has none."""
        num_ranks = distributed.get_world_size(self.call.group)
        most = torch.tensor(len(self.token_weights), device=self.stats.device)
        distributed.all_reduce(most, op=distributed.ReduceOp.MAX, group=self.call.group)
        self.own_rows = max(1, min(self.call.chunk_size // num_ranks, int(most)))
        for start in range(0, int(most), self.own_rows):
            yield slice(start, start + self.own_rows)

    def _chunk(self, rows: slice) -> None:
        call, group = self.call, self.call.group
        students, teachers = (
            self._everybodys(hidden[rows].to(head.dtype)) for hidden, head in (self.student, self.teacher)
        )
        weights = self._everybodys(self.token_weights[rows].to(self.dtype))
        picked = self._everybodys(self.token_ids[rows]) - call.first_entry
        makes_gradient = self.grad_hidden is not None or self.grad_weight is not None
        stats, gradient = row_statistics(
            self.student[1].logits(students, self.dtype),
            self.teacher[1].logits(teachers, self.dtype),
            call.kind,
            beta=call.beta,
            temperature=call.temperature,
            picked=picked.masked_fill(picked >= self.student[1].entries, -1),  # another slice's, or nobody's
            gradient_scale=weights if makes_gradient else None,
            reduce=lambda values, op: distributed.all_reduce(values, op=op, group=group),
        )
        broken = ~torch.isfinite(stats[:3]).all(dim=0)
        stats = stats.masked_fill(broken, 0.0)
        own = slice(distributed.get_rank(group) * self.own_rows, None)
        here = len(self.token_weights[rows])
        self.stats[:, rows], self.nonfinite[rows] = stats[:, own][:, :here], broken[own][:here]
        if gradient is not None:
            self._gradients(gradient.masked_fill_(broken.unsqueeze(1), 0.0), students, broken, rows)

    def _gradients(self, gradient: Tensor, students: Tensor, broken: Tensor, rows: slice) -> None:
        head = self.student[1]
        scale = _GRADIENT_SCALE.get(head.dtype, 1.0)
        gradient = gradient.mul_(scale).to(head.dtype)
        if self.grad_weight is not None:
            # A broken row's gradient is 0, but 0 * nan would reach every entry of the head.
            clean = students.masked_fill(broken.unsqueeze(1), 0.0)
            accumulate(self.grad_weight, gradient.T, clean, alpha=1.0 / scale)
        if self.grad_hidden is not None:
            part = head.hidden_gradient(gradient, students.new_empty(students.shape, dtype=self.dtype)).div_(scale)
            own = part.new_empty(self.own_rows, part.shape[1])
            distributed.reduce_scatter_tensor(own, part, group=self.call.group)
            here = self.grad_hidden[rows]
            here.copy_(own[: len(here)].masked_fill(self.nonfinite[rows].unsqueeze(1), 0.0))

    def _everybodys(self, values: Tensor) -> Tensor:
        """[n, ...] of this rank, n <= own_rows -> [ranks * own_rows, ...]: rank after rank, missing rows 0."""
        padded = values.new_zeros(self.own_rows, *values.shape[1:])
        padded[: len(values)] = values
        out = values.new_empty(distributed.get_world_size(self.call.group) * self.own_rows, *values.shape[1:])
        distributed.all_gather_into_tensor(out, padded, group=self.call.group)
        return out
