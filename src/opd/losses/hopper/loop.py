"""One forward of the fused divergence: the loop over groups of tokens, and the precision of their logits.

The host reads numbers back once a group, with milliseconds of work queued after them, so the device never waits for it.
"""

import math

import torch
from torch import Tensor

from opd.losses.chunks import Forward
from opd.losses.hopper.logits_kernel import VOCAB_BLOCK, head_logits
from opd.losses.hopper.plan import Group, LogitsPrecision, RowBytes, plan_groups
from opd.losses.hopper.row_kernel import (
    NUM_STATS,
    Logits,
    divergence_rows,
    expected_error,
    gradient_numbers,
    new_gradient_stats,
)
from opd.losses.padded_head import Gradients, PaddedHead
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
) -> tuple[Forward, LogitsPrecision]:
    """Run over all tokens; from fp16 logits again with fp32 ones, where a group's expected error is above the limit.

    Raises:
        ValueError: a token's weight is not finite, or the workspace is too small.
    """
    while True:
        one = _Run(hidden, weight.detach(), request, precision, need_hidden, need_weight)
        if one.is_within(math.inf if precision == "fp32" else max_expected_error, workspace_bytes):
            return one.result(), precision
        del one  # its gradients, before the next ones are allocated
        precision = "fp32"


class _Run:
    """One attempt over all tokens, and its buffers."""

    def __init__(
        self, hidden: Tensor, weight: Tensor, request: Request, precision: LogitsPrecision, need_hidden: bool, need_weight: bool
    ) -> None:  # fmt: skip
        assert isinstance(request.targets, HiddenTargets)
        assert request.weights.divergence is not None
        self.hidden, self.targets, self.loss = hidden, request.targets, request.loss
        self.token_weights = request.weights.divergence.float().contiguous()
        self.ids, self.vocab, self.precision = request.ids.long().contiguous(), request.vocab, precision
        self.weight = weight[: request.vocab]
        head, need = PaddedHead(self.weight), {"need_hidden": need_hidden, "need_weight": need_weight}
        self.gradients, self.stride = Gradients(hidden, weight, head, torch.float32, **need), head.padded
        self.row = RowBytes.of(head.padded, -(-request.vocab // VOCAB_BLOCK), precision)
        num_tokens, device = len(hidden), hidden.device
        self.stats = torch.empty(num_tokens, NUM_STATS, device=device)
        self.gradient_stats = new_gradient_stats(num_tokens, self.vocab, is_fp32=precision == "fp32", device=device)

    def is_within(self, limit: float, workspace_bytes: int) -> bool:
        """Run. False means that the gradient's expected error is above the limit, and the run stopped."""
        borrowed = 0 if self.gradients.weight is None else self.gradients.weight.nbytes
        groups = plan_groups(len(self.hidden), self.row, workspace_bytes=workspace_bytes, weight_grad_bytes=borrowed)
        workspace = torch.empty(max(map(self._bytes, groups), default=0), device=self.hidden.device, dtype=torch.uint8)
        for group in groups:
            num_bytes = (group.stop - group.start) * self.row.gradient
            gradient, storage = workspace[:num_bytes].view(torch.bfloat16).view(-1, self.stride), workspace[num_bytes:]
            if group.in_weight_grad and self.gradients.weight is not None:
                storage = self.gradients.weight.view(-1).view(torch.uint8)
            for tokens in group.chunks():
                self._chunk(tokens, gradient[tokens.start - group.start : tokens.stop - group.start], storage)
            done = slice(0, group.stop)
            numbers = HostCopy(gradient_numbers(self.gradient_stats[done], self.token_weights[done]))
            self.gradients.add_hidden(group.start, gradient)
            if expected_error(numbers.read()) > limit:
                return False
            self.gradients.add_weight(group.start, gradient)
        return True

    def _bytes(self, group: Group) -> int:
        """Return the bytes of the workspace, without the blocks' maxima."""
        own = 0 if group.in_weight_grad else self.row.logits
        return (group.stop - group.start) * self.row.gradient + group.rows * own

    def _chunk(self, tokens: slice, gradient: Tensor, storage: Tensor) -> None:
        """Compute both heads' logits of one chunk, its statistics, and its gradient [n, stride]."""
        n, kept = len(gradient), gradient[:, : self.vocab]
        used = storage[: n * self.row.logits]
        if self.precision == "fp16":
            maxima = torch.empty(2, n, self.row.maxima // 8, device=gradient.device)
            logits = used.view(torch.float16).view(n, self.stride)[:, : self.vocab]
            student, teacher = Logits(kept.view(torch.float16), maxima[0]), Logits(logits, maxima[1])
        else:
            both = used.view(torch.float32).view(2, n, self.stride)[:, :, : self.vocab]
            student, teacher = Logits(both[0], None), Logits(both[1], None)
        of_teacher = self.targets.hidden[tokens].to(self.targets.weight.dtype).contiguous()
        head_logits(of_teacher, self.targets.weight[: self.vocab], *teacher)
        head_logits(self.hidden[tokens].to(self.weight.dtype).contiguous(), self.weight, *student)
        divergence_rows(
            student,
            teacher,
            self.loss.kind,
            beta=float(self.loss.params.get("beta", 0.0)),
            temperature=self.loss.temperature,
            token_ids=self.ids[tokens],
            weights=self.token_weights[tokens],
            stats=self.stats[tokens],
            gradient=kept,
            gradient_stats=self.gradient_stats[tokens],
        )

    def result(self) -> Forward:
        """Return the result of the call."""
        names = ("divergence", "entropy", "teacher_entropy", "log_prob", "teacher_log_prob")
        statistics = dict(zip(names, self.stats[:, :5].T.contiguous(), strict=True))
        statistics["nonfinite"] = self.stats[:, 5] == 0
        return Forward((self.stats[:, 0] * self.token_weights).sum(), statistics, *self.gradients.whole())
