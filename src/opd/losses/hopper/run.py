"""One forward of the fused divergence: the loop over groups of tokens, and the precision of their logits.

Imports triton through the head product, so it is loaded only where a CUDA device is there. The host reads numbers back
once a group, with milliseconds of work queued after them, so the device never waits for it.
"""

import functools
import math
from types import MappingProxyType

import torch
from torch import Tensor

from opd.losses.chunks import Forward
from opd.losses.hopper.buffers import Buffers
from opd.losses.hopper.logits_kernel import VOCAB_BLOCK, head_logits, scale_in_place
from opd.losses.hopper.plan import LogitsPrecision, RowBytes, TokenGroup, plan_groups
from opd.losses.hopper.row_kernel import (
    NUM_STATS,
    divergence_rows,
    expected_error,
    gradient_numbers,
    new_gradient_stats,
)
from opd.losses.padded_head import PaddedHead, accumulate, padded_entries
from opd.losses.terms import HiddenTargets, Request

MAX_EXPECTED_ERROR = 2.5e-3
"""Expected error of the logits' gradient above which a call repeats with fp32 logits."""


class HostCopy:
    """A copy of values to the host that starts at once; `read` waits for the work queued before it, not for later work."""

    def __init__(self, values: Tensor) -> None:
        self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        self._host.copy_(values, non_blocking=True)
        self._done = torch.cuda.Event()
        self._done.record()

    def read(self) -> Tensor:
        """Return the values, in host memory."""
        self._done.synchronize()
        return self._host


def run(
    hidden: Tensor,
    weight: Tensor,
    request: Request,
    *,
    precision: LogitsPrecision,
    workspace_bytes: int,
    need_hidden: bool,
    need_weight: bool,
    max_expected_error: float = MAX_EXPECTED_ERROR,
) -> Forward:
    """Run over all tokens; from fp16 logits again with fp32 ones, where a group's expected error is above the limit.

    Raises:
        ValueError: a token's weight is not finite, or the workspace is too small.
    """
    while True:
        one = _Run(hidden, weight.detach(), request, precision, workspace_bytes, need_hidden, need_weight)
        if one.is_within(math.inf if precision == "fp32" else max_expected_error):
            return one.result()
        del one  # its gradients, before the next ones are allocated
        precision = "fp32"


class _Run:
    """One attempt over all tokens."""

    def __init__(
        self, hidden: Tensor, weight: Tensor, request: Request, precision: LogitsPrecision, workspace_bytes: int,
        need_hidden: bool, need_weight: bool,
    ) -> None:  # fmt: skip
        assert isinstance(request.targets, HiddenTargets)
        assert request.weights.divergence is not None
        self.hidden, self.weight, self.targets, self.loss = hidden, weight, request.targets, request.loss
        self.token_weights = request.weights.divergence.float().contiguous()
        self.ids, self.vocab, self.precision = request.ids.long().contiguous(), request.vocab, precision
        self.beta = float(request.loss.params.get("beta", 0.0))
        self.stride, self.workspace_bytes = padded_entries(request.vocab), workspace_bytes
        self.stats = torch.empty(len(hidden), NUM_STATS, device=hidden.device)
        self.gradient_stats = new_gradient_stats(
            len(hidden), self.vocab, is_fp32=precision == "fp32", device=hidden.device
        )
        self.grad_hidden = torch.empty_like(hidden) if need_hidden else None
        # The product that writes it runs over a rounded number of entries too.
        rows = max(len(weight), self.stride)
        self.grad_weight = weight.new_empty(rows, weight.shape[1], dtype=torch.float32) if need_weight else None
        self.expected_error, self.num_nonfinite = 0.0, 0

    def is_within(self, limit: float) -> bool:
        """Run; False means that the gradient's expected error is above the limit, and nothing is done."""
        if not len(self.hidden):
            if self.grad_weight is not None:
                self.grad_weight.zero_()
            return True
        row = RowBytes.of(self.stride, -(-self.vocab // VOCAB_BLOCK), self.precision)
        borrowed = 0 if self.grad_weight is None else self.grad_weight.nbytes
        groups = plan_groups(len(self.hidden), row, workspace_bytes=self.workspace_bytes, weight_grad_bytes=borrowed)
        buffers = Buffers(groups, row, vocab=self.vocab, stride=self.stride, weight_grad=self.grad_weight, device=self.hidden.device)  # fmt: skip
        for group in groups:
            for start, stop in group.chunks():
                self._chunk(buffers, group, slice(start, stop))
            done = slice(0, group.stop)
            numbers = HostCopy(gradient_numbers(self.gradient_stats[done], self.token_weights[done], self.stats[done]))
            self._hidden_product(buffers, group)
            self.expected_error, self.num_nonfinite = expected_error(numbers.read())
            if self.expected_error > limit:
                return False
            self._weight_product(buffers, group)
        if self.grad_weight is not None:
            self.grad_weight[self.vocab :].zero_()
        if self.grad_hidden is not None and self.num_nonfinite:  # a gradient of 0 times an infinite head
            self.grad_hidden.masked_fill_((self.stats[:, 5] == 0).unsqueeze(1), 0.0)
        return True

    def result(self) -> Forward:
        """Return the result of the call."""
        names = ("divergence", "entropy", "teacher_entropy", "log_prob", "teacher_log_prob")
        statistics = dict(zip(names, self.stats[:, :5].T.contiguous(), strict=True))
        return Forward(
            (self.stats[:, 0] * self.token_weights).sum(),
            statistics | {"nonfinite": self.stats[:, 5] == 0},
            self.grad_hidden,
            None if self.grad_weight is None else self.grad_weight[: len(self.weight)],
            "fused",
            MappingProxyType({"precision": self.precision, "expected_error": self.expected_error}),
            scale_in_place,
        )

    @functools.cached_property
    def head(self) -> PaddedHead:
        """The student's head for the gradients' products. Made when they are: the first product does not wait for its copy."""
        return PaddedHead(self.weight[: self.vocab])

    def _chunk(self, buffers: Buffers, group: TokenGroup, tokens: slice) -> None:
        """Compute both heads' logits of one chunk, its statistics, and its gradient into the group's rows."""
        chunk, targets = buffers.chunk(group, tokens.start, tokens.stop), self.targets
        teacher = targets.hidden[tokens].to(targets.weight.dtype).contiguous()
        head_logits(teacher, targets.weight[: self.vocab], *chunk.teacher)
        head_logits(self._states(tokens), self.weight[: self.vocab], *chunk.student)
        divergence_rows(
            chunk.student,
            chunk.teacher,
            self.loss.kind,
            beta=self.beta,
            temperature=self.loss.temperature,
            token_ids=self.ids[tokens],
            weights=self.token_weights[tokens],
            stats=self.stats[tokens],
            gradient=chunk.gradient,
            gradient_stats=self.gradient_stats[tokens],
        )

    def _states(self, tokens: slice) -> Tensor:
        """Return the student's hidden states [n, d] in the head's dtype."""
        return self.hidden[tokens].to(self.weight.dtype).contiguous()

    def _hidden_product(self, buffers: Buffers, group: TokenGroup) -> None:
        """Compute d loss / d hidden of the group, accumulated in fp32 and rounded once."""
        if self.grad_hidden is None:
            return
        gradient, width = buffers.gradient(group), self.head.width
        chunks, most = list(group.chunks()), buffers.hidden_rows(group, width)
        while chunks:
            first, end = chunks.pop(0)
            while chunks and chunks[0][1] - first <= most:
                end = chunks.pop(0)[1]
            part = gradient[first - group.start : end - group.start]
            product = self.head.hidden_gradient(part, buffers.hidden_product(group, end - first, width))
            self.grad_hidden[first:end] = product

    def _weight_product(self, buffers: Buffers, group: TokenGroup) -> None:
        """Add the group's part of d loss / d weight, in fp32; the first group's overwrites the borrowed storage."""
        if self.grad_weight is None:
            return
        tokens = slice(group.start, group.stop)
        states = self._states(tokens)
        if self.num_nonfinite:  # the row's gradient is 0, but 0 * nan would reach every row of the head's
            states = states.masked_fill((self.stats[tokens, 5] == 0).unsqueeze(1), 0.0)
        accumulate(self.grad_weight[: self.stride], buffers.gradient(group).T, states, beta=float(group.start > 0))
