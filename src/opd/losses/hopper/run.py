"""One forward of the fused divergence: the loop over groups of tokens, and the choice of how they are stored.

Imports triton through the head product, so it is loaded only where a CUDA device is there. The host reads numbers back
three times a call or more, each time with milliseconds of work queued behind them, so the device never waits for it.
"""

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from opd.losses.hopper.buffers import Buffers, ChunkBuffers
from opd.losses.hopper.logits_kernel import VOCAB_BLOCK, head_logits
from opd.losses.hopper.numbers_kernel import gradient_numbers, scale_weights
from opd.losses.hopper.plan import LogitsPrecision, RowBytes, TokenGroup, plan_groups, plan_scores
from opd.losses.hopper.row_kernel import (
    NUM_STATS,
    GradientReport,
    GradientRows,
    divergence_rows,
    gradient_report,
    gradient_unit,
)
from opd.losses.padded_head import PaddedHead, accumulate, padded_entries


class HostCopy:
    """Starts copying at once, behind the work queued so far; `read` waits for that work only, not for later work."""

    def __init__(self, values: Tensor) -> None:
        self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        self._host.copy_(values, non_blocking=True)
        self._done = torch.cuda.Event()
        self._done.record()

    def read(self) -> Tensor:
        """The values, in host memory."""
        self._done.synchronize()
        return self._host


# A gradient entry is a probability times a difference of log ratios. 2^10 leaves fp16 room for 64 nats above, and below
# for a gradient of norm 1e-3 to keep three digits; what needs another scale is seen in the row kernel's numbers.
GRADIENT_SCALE = 2.0**10
FP16_LIMIT = 65504.0
FP16_SAFE_PEAK = 2.0**14


class Call(NamedTuple):
    """The arguments of one call that are no tensors."""

    kind: str
    beta: float
    temperature: float
    vocab: int
    """Entries that count."""
    workspace_bytes: int
    precision: LogitsPrecision
    max_expected_error: float


class Inputs(NamedTuple):
    """The call's tensors as they came: hidden states [T, d], heads [V, d], weights [T], token ids [T] or None."""

    student_hidden: Tensor
    student_weight: Tensor
    teacher_hidden: Tensor
    teacher_weight: Tensor
    token_weights: Tensor
    token_ids: Tensor | None


class Result(NamedTuple):
    """Everything one forward makes."""

    stats: Tensor
    """[T, NUM_STATS]"""
    loss_sum: Tensor
    grad_hidden: Tensor | None
    grad_weight: Tensor | None
    precision: LogitsPrecision
    expected_error: float


class Attempt(NamedTuple):
    """How logits and gradient are stored in one run over all tokens."""

    precision: LogitsPrecision
    gradient_scale: float


def run(inputs: Inputs, call: Call, *, need_hidden: bool, need_weight: bool) -> Result:
    """Run over all tokens; again, stored otherwise, where a group's gradient is expected to be off by more than the limit."""
    unit = gradient_unit(call.kind, call.beta, call.temperature)
    attempt = Attempt(call.precision, GRADIENT_SCALE / _power_of_two(unit))
    while True:
        forward = Forward(inputs, call, attempt, need_hidden=need_hidden, need_weight=need_weight)
        better = forward.run()
        if better is None:
            return forward.result()
        del forward  # its gradients, before the next ones are allocated
        attempt = better


def _power_of_two(value: float) -> float:
    """The largest power of two that is not above a positive value: scaling by it rounds nothing."""
    return 2.0 ** math.floor(math.log2(value))


class Forward:
    """One attempt over all tokens."""

    def __init__(self, inputs: Inputs, call: Call, attempt: Attempt, *, need_hidden: bool, need_weight: bool) -> None:
        self.inputs, self.call, self.attempt = inputs, call, attempt
        hidden, weight = inputs.student_hidden, inputs.student_weight
        self.num_tokens, self.device = len(hidden), hidden.device
        self.stats = torch.empty(self.num_tokens, NUM_STATS, device=self.device)
        self.grad_hidden = torch.empty_like(hidden) if need_hidden else None
        self.stride = padded_entries(call.vocab)
        # Rounded up as the product that writes it is; what lies behind the head's own rows is cut off when done.
        weight_rows = max(len(weight), self.stride)
        self.grad_weight = weight.new_empty(weight_rows, weight.shape[1], dtype=torch.float32) if need_weight else None
        self.makes_gradient = need_hidden or need_weight
        self.weights = inputs.token_weights
        self.weight_numbers: HostCopy | None = None
        self.has_begun = False
        self.numbers: list[Tensor] = []
        self.report = GradientReport(0.0, 0.0, 0.0, 0)

    def run(self) -> Attempt | None:
        """None when done, or how to store it in another attempt."""
        if not self.num_tokens:
            if self.grad_weight is not None:
                self.grad_weight.zero_()
            return None
        groups, buffers = self._plan()
        for group in groups:
            for start, stop in group.chunks():
                self._logits_and_rows(buffers, group, start, stop)
            if not self.makes_gradient:
                continue
            numbers = HostCopy(torch.stack(self.numbers))
            self._hidden_product(buffers, group)
            self.weight_unit  # noqa: B018  refuses weights that are not finite before anything is read from their gradient
            self.report = gradient_report(numbers.read(), self.inputs.student_weight.dtype)
            better = self._better_attempt()
            if better is not None:
                return better
            self._weight_product(buffers, group)
        if self.grad_weight is not None:
            self.grad_weight[self.call.vocab :].zero_()
        if self.grad_hidden is not None and self.report.num_nonfinite:  # a gradient of 0 times an infinite head
            self.grad_hidden.masked_fill_((self.stats[:, 5] == 0).unsqueeze(1), 0.0)
        return None

    def result(self) -> Result:
        loss_sum = (self.stats[:, 0] * self.inputs.token_weights).sum()
        error = self.report.expected_error
        grad_weight = None if self.grad_weight is None else self.grad_weight[: len(self.inputs.student_weight)]
        return Result(self.stats, loss_sum, self.grad_hidden, grad_weight, self.attempt.precision, error)

    def _plan(self) -> tuple[list[TokenGroup], Buffers]:
        call, precision = self.call, self.attempt.precision
        num_blocks = math.ceil(call.vocab / VOCAB_BLOCK)
        row = RowBytes.of(self.stride, num_blocks, precision)
        groups = self._groups(self.num_tokens, row)
        return groups, Buffers(
            groups,
            vocab=call.vocab,
            stride=self.stride,
            num_blocks=num_blocks,
            precision=precision,
            gradient_dtype=self.inputs.student_weight.dtype,
            keeps_gradient=self.makes_gradient,
            weight_grad=self.grad_weight,
            device=self.device,
        )

    def _groups(self, num_tokens: int, row: RowBytes) -> list[TokenGroup]:
        budget = self.call.workspace_bytes
        if not self.makes_gradient:
            return plan_scores(num_tokens, row, workspace_bytes=budget)
        borrowed = 0 if self.grad_weight is None else self.grad_weight.nbytes
        return plan_groups(num_tokens, row, workspace_bytes=budget, weight_grad_bytes=borrowed)

    @functools.cached_property
    def head(self) -> PaddedHead:
        """The student's head for the gradients' products. Made when they are: the first product does not wait for its copy."""
        return PaddedHead(self.inputs.student_weight[: self.call.vocab])

    def _logits_and_rows(self, buffers: Buffers, group: TokenGroup, start: int, stop: int) -> None:
        """Both heads' logits of one chunk, its statistics, and its gradient into the group's rows."""
        call, inputs = self.call, self.inputs
        chunk = buffers.chunk(group, start, stop)
        head_logits(self._teacher_hidden(start, stop), inputs.teacher_weight[: call.vocab], *chunk.teacher)
        self._begin()
        head_logits(self._student_hidden(start, stop), inputs.student_weight[: call.vocab], *chunk.student)
        gradient = None
        if chunk.gradient is not None and chunk.gradient_stats is not None:
            weights = self.weights[start:stop]
            gradient = GradientRows(chunk.gradient, weights, self.attempt.gradient_scale, chunk.gradient_stats)
        self._rows(chunk, start, stop, gradient)
        if gradient is not None:
            stats = self.stats[start:stop]
            self.numbers.append(
                gradient_numbers(gradient, stats, call.kind, beta=call.beta, temperature=call.temperature)
            )

    def _rows(self, chunk: ChunkBuffers, start: int, stop: int, gradient: GradientRows | None) -> None:
        """Statistics of a chunk, and its gradient where one is made."""
        ids = self.inputs.token_ids
        divergence_rows(
            chunk.student,
            chunk.teacher,
            self.call.kind,
            beta=self.call.beta,
            temperature=self.call.temperature,
            token_ids=None if ids is None else ids[start:stop],
            stats=self.stats[start:stop],
            gradient=gradient,
        )

    def _teacher_hidden(self, start: int, stop: int) -> Tensor:
        """[stop - start, d_T] in the head's dtype."""
        return self.inputs.teacher_hidden[start:stop].to(self.inputs.teacher_weight.dtype).contiguous()

    def _student_hidden(self, start: int, stop: int) -> Tensor:
        """[stop - start, d_S] in the head's dtype."""
        return self.inputs.student_hidden[start:stop].to(self.inputs.student_weight.dtype).contiguous()

    def _begin(self) -> None:
        """Once, behind the first product: the device, idle until that, waits for nothing else."""
        if self.makes_gradient and not self.has_begun:
            self.weights, numbers = scale_weights(self.weights.float())
            self.weight_numbers = HostCopy(numbers)
        self.has_begun = True

    @functools.cached_property
    def weight_unit(self) -> float:
        """What the weights are fractions of since `_begin`. Read when the row kernel is queued, or the device would wait for it."""
        if self.weight_numbers is None:
            return 1.0
        unit, are_finite = self.weight_numbers.read().tolist()
        if not are_finite:
            raise ValueError("token_weights: holds nan or inf; a token that must not count has weight 0")
        return float(unit)

    def _better_attempt(self) -> Attempt | None:
        """How to store what this attempt could not hold, or None if what is expected is within the limit."""
        report, limit = self.report, self.call.max_expected_error
        if self.inputs.student_weight.dtype == torch.float16 and report.peak > 0.0:
            grow = _power_of_two(FP16_SAFE_PEAK / report.peak)
            if report.peak > FP16_LIMIT or (report.range_error > limit / 2 and grow > 1.0):
                return self.attempt._replace(gradient_scale=self.attempt.gradient_scale * grow)
        if self.attempt.precision == "fp16" and report.expected_error > limit:
            return self.attempt._replace(precision="fp32")
        return None

    def _hidden_product(self, buffers: Buffers, group: TokenGroup) -> None:
        """d loss / d hidden of the group: accumulated in fp32, rounded once."""
        if self.grad_hidden is None:
            return
        gradient, width = buffers.gradient(group), self.head.width
        chunks, most = list(group.chunks()), buffers.hidden_rows(group, width)
        while chunks:
            together = [chunks.pop(0)]
            while chunks and chunks[0][1] - together[0][0] <= most:
                together.append(chunks.pop(0))
            first, end = together[0][0], together[-1][1]
            part = gradient[first - group.start : end - group.start]
            product = self.head.hidden_gradient(part, buffers.hidden_product(group, end - first, width))
            for start, stop in together:
                self._keep_hidden(product[start - first : stop - first], start, stop)

    def _keep_hidden(self, product: Tensor, start: int, stop: int) -> None:
        """Scale a chunk's product [stop - start, d_S] fp32 into the gradient."""
        assert self.grad_hidden is not None
        torch.mul(product, self.weight_unit / self.attempt.gradient_scale, out=self.grad_hidden[start:stop])

    def _weight_product(self, buffers: Buffers, group: TokenGroup) -> None:
        """Add the group's part of d loss / d weight, in fp32; the first group's overwrites the borrowed storage."""
        if self.grad_weight is None:
            return
        hidden = self._student_hidden(group.start, group.stop)
        if self.report.num_nonfinite:  # the row's gradient is 0, but 0 * nan would reach every row of the head's
            hidden = hidden.masked_fill((self.stats[group.start : group.stop, 5] == 0).unsqueeze(1), 0.0)
        accumulate(
            self.grad_weight[: self.stride],
            buffers.gradient(group).T,
            hidden,
            beta=0 if group.start == 0 else 1,
            alpha=self.weight_unit / self.attempt.gradient_scale,
        )
