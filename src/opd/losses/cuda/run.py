"""One forward of the fused divergence: the loop over groups of tokens, and the choice of how they are stored.

Imports triton through the head product, so it is loaded only where a CUDA device is there. The host reads numbers back
three times a call or more, each time with milliseconds of work queued behind them, so the device never waits for it.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from opd.losses.cuda.buffers import Buffers
from opd.losses.cuda.host_copy import HostCopy
from opd.losses.cuda.logits_kernel import VOCAB_BLOCK, head_logits
from opd.losses.cuda.plan import LogitsPrecision, RowBytes, TokenGroup, plan_groups, plan_scores
from opd.losses.cuda.row_kernel import (
    NUM_STATS,
    GradientReport,
    GradientRows,
    divergence_rows,
    gradient_numbers,
    gradient_report,
    gradient_unit,
)
from opd.losses.divergence import DivergenceKind
from opd.losses.padded_head import PaddedHead, accumulate, padded_entries

# A gradient entry is a probability times a difference of log ratios. 2^10 leaves fp16 room for 64 nats above, and below
# for a gradient of norm 1e-3 to keep three digits; what needs another scale is seen in the row kernel's numbers.
GRADIENT_SCALE = 2.0**10
FP16_LIMIT = 65504.0
FP16_SAFE_PEAK = 2.0**14


class Call(NamedTuple):
    """The arguments of one call that are no tensors."""

    kind: DivergenceKind
    beta: float
    temperature: float
    vocab: int
    workspace_bytes: int
    precision: LogitsPrecision
    max_estimated_error: float
    with_gradient: bool


class Inputs(NamedTuple):
    """The call's tensors as they came: hidden states [T, d], heads [V, d], weights [T], token ids [T] inside the vocabulary."""

    student_hidden: Tensor
    student_weight: Tensor
    teacher_hidden: Tensor
    teacher_weight: Tensor
    token_weights: Tensor
    token_ids: Tensor


class Result(NamedTuple):
    """Everything one forward makes."""

    stats: Tensor
    """[T, NUM_STATS]"""
    loss_sum: Tensor
    grad_hidden: Tensor | None
    grad_weight: Tensor | None
    precision: LogitsPrecision
    estimated_error: float


class Attempt(NamedTuple):
    """How logits and gradient are stored in one run over all tokens."""

    precision: LogitsPrecision
    gradient_scale: float


def run(inputs: Inputs, call: Call, *, need_hidden: bool, need_weight: bool) -> Result:
    """Run over all tokens; again, stored otherwise, where a group's gradient misses the bound."""
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
        self.stats = torch.zeros(self.num_tokens, NUM_STATS, device=self.device)
        self.grad_hidden = torch.empty_like(hidden) if need_hidden else None
        self.stride = padded_entries(call.vocab)
        # Rounded up as the product that writes it is; what lies behind the head's own rows is cut off when done.
        weight_rows = max(len(weight), self.stride)
        self.grad_weight = weight.new_empty(weight_rows, weight.shape[1], dtype=torch.float32) if need_weight else None
        self.head = PaddedHead(weight[: call.vocab])
        self.makes_gradient = need_hidden or need_weight
        self.weights, self.weight_unit = inputs.token_weights.float(), 1.0
        self.largest_weight: HostCopy | None = None
        self.numbers: list[Tensor] = []
        self.report = GradientReport(0.0, 0.0, 0.0, 0)

    def run(self) -> Attempt | None:
        """None when done, or how to store it in another attempt."""
        if not self.num_tokens:
            if self.grad_weight is not None:
                self.grad_weight.zero_()
            return None
        if self.makes_gradient:
            self.largest_weight = HostCopy(self.weights.abs().amax())
        groups, buffers = self._plan()
        for group in groups:
            for start, stop in group.chunks():
                self._logits_and_rows(buffers, group, start, stop)
            if not self.makes_gradient:
                continue
            numbers = HostCopy(torch.stack(self.numbers))
            self._hidden_product(buffers, group)
            self.report = gradient_report(numbers.read(), self.inputs.student_weight.dtype)
            better = self._better_attempt()
            if better is not None:
                return better
            self._weight_product(buffers, group)
        if self.grad_weight is not None:
            self.grad_weight[self.call.vocab :].zero_()
        if self.grad_hidden is not None and self.report.num_nonfinite:  # a gradient of 0 times an infinite head
            self.grad_hidden.masked_fill_(self._nonfinite().unsqueeze(1), 0.0)
        return None

    def result(self) -> Result:
        loss_sum = (self.stats[:, 0] * self.inputs.token_weights).sum()
        error = self.report.estimated_error
        grad_weight = None if self.grad_weight is None else self.grad_weight[: len(self.inputs.student_weight)]
        return Result(self.stats, loss_sum, self.grad_hidden, grad_weight, self.attempt.precision, error)

    def _plan(self) -> tuple[list[TokenGroup], Buffers]:
        call, precision = self.call, self.attempt.precision
        num_blocks = math.ceil(call.vocab / VOCAB_BLOCK)
        row = RowBytes.of(self.stride, num_blocks, precision)
        if self.makes_gradient:
            borrowed = 0 if self.grad_weight is None else self.grad_weight.nbytes
            groups = plan_groups(self.num_tokens, row, workspace_bytes=call.workspace_bytes, weight_grad_bytes=borrowed)
        else:
            groups = plan_scores(self.num_tokens, row, workspace_bytes=call.workspace_bytes)
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

    def _logits_and_rows(self, buffers: Buffers, group: TokenGroup, start: int, stop: int) -> None:
        """Both heads' logits of one chunk, its statistics, and its gradient into the group's rows."""
        call, inputs, rows = self.call, self.inputs, slice(start, stop)
        chunk = buffers.chunk(group, start, stop)
        for hidden, weight, logits in (
            (inputs.teacher_hidden, inputs.teacher_weight, chunk.teacher),
            (inputs.student_hidden, inputs.student_weight, chunk.student),
        ):
            head_logits(hidden[rows].to(weight.dtype).contiguous(), weight[: call.vocab], *logits)
        gradient = None
        if chunk.gradient is not None and chunk.gradient_stats is not None:
            self._normalise_weights()
            scale = self.attempt.gradient_scale
            gradient = GradientRows(chunk.gradient, self.weights[rows], scale, chunk.gradient_stats)
        divergence_rows(
            chunk.student,
            chunk.teacher,
            call.kind,
            beta=call.beta,
            temperature=call.temperature,
            token_ids=inputs.token_ids[rows],
            stats=self.stats[rows],
            gradient=gradient,
        )
        if gradient is not None:
            self.numbers.append(
                gradient_numbers(gradient, self.stats[rows], call.kind, beta=call.beta, temperature=call.temperature)
            )

    def _normalise_weights(self) -> None:
        """Once: weights as fractions of a power of two near the largest, so that fp16 gradients keep their range."""
        if self.largest_weight is None:
            return
        largest = float(self.largest_weight.read())
        self.largest_weight = None
        if not math.isfinite(largest):
            raise ValueError("token_weights: holds nan or inf; a token that must not count has weight 0")
        self.weight_unit = 2.0 * _power_of_two(largest) if largest > 0 else 1.0
        self.weights = self.weights / self.weight_unit

    def _better_attempt(self) -> Attempt | None:
        """How to store what this attempt could not hold, or None if all is within the bound."""
        report, bound = self.report, self.call.max_estimated_error
        if self.inputs.student_weight.dtype == torch.float16 and report.peak > 0.0:
            grow = _power_of_two(FP16_SAFE_PEAK / report.peak)
            if report.peak > FP16_LIMIT or (report.range_error > bound / 2 and grow > 1.0):
                return self.attempt._replace(gradient_scale=self.attempt.gradient_scale * grow)
        if self.attempt.precision == "fp16" and report.estimated_error > bound:
            return self.attempt._replace(precision="fp32")
        return None

    def _hidden_product(self, buffers: Buffers, group: TokenGroup) -> None:
        """d loss / d hidden of the group: accumulated in fp32, rounded once."""
        if self.grad_hidden is None:
            return
        gradient = buffers.gradient(group)
        for start, stop in group.chunks():
            part = gradient[start - group.start : stop - group.start]
            product = self.head.hidden_gradient(part, buffers.hidden_product(group, stop - start, self.head.width))
            torch.mul(product, self.weight_unit / self.attempt.gradient_scale, out=self.grad_hidden[start:stop])

    def _weight_product(self, buffers: Buffers, group: TokenGroup) -> None:
        """Add the group's part of d loss / d weight, in fp32; the first group's overwrites the borrowed storage."""
        if self.grad_weight is None:
            return
        rows = slice(group.start, group.stop)
        hidden = self.inputs.student_hidden[rows].to(self.inputs.student_weight.dtype)
        if self.report.num_nonfinite:  # the row's gradient is 0, but 0 * nan would reach every row of the head's
            hidden = hidden.masked_fill(self._nonfinite()[rows].unsqueeze(1), 0.0)
        accumulate(
            self.grad_weight[: self.stride],
            buffers.gradient(group).T,
            hidden,
            beta=0 if group.start == 0 else 1,
            alpha=self.weight_unit / self.attempt.gradient_scale,
        )

    def _nonfinite(self) -> Tensor:
        return self.stats[:, 5] == 0
