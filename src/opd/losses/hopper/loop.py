"""One forward of the fused divergence: the loop over groups of tokens, and the precision of their logits.

The host reads numbers back once a group, with milliseconds of work queued after them, so the device never waits for it.
"""

import math

import torch
from torch import Tensor

from opd.head_form import WORKSPACE_GIB
from opd.losses.chunks import Forward, Plan
from opd.losses.hopper.logits_kernel import VOCAB_BLOCK, head_logits
from opd.losses.hopper.row_kernel import Logits, divergence_rows, expected_error, gradient_numbers, new_statistics
from opd.losses.padded_head import Gradients, PaddedHead, Trained
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


def run(hidden: Tensor, weight: Tensor, request: Request, trained: Trained, *, is_wide: bool) -> tuple[Forward, bool]:
    """Return the result over all tokens, and True if its logits were fp32: `is_wide` begins with them.

    From fp16 logits it runs again with fp32 ones, where a group's expected error is above the limit.
    """
    while True:
        one = _Run(hidden, weight.detach(), request, trained, is_wide)
        if one.is_within(math.inf if is_wide else MAX_EXPECTED_ERROR):
            return one.result(), is_wide
        del one  # its gradients, before the next ones are allocated
        is_wide = True


class _Run:
    """One attempt over all tokens, and its buffers."""

    def __init__(self, hidden: Tensor, weight: Tensor, request: Request, trained: Trained, is_wide: bool) -> None:
        assert isinstance(request.targets, HiddenTargets)
        assert request.weights.divergence is not None
        self.hidden, self.targets, self.loss = hidden, request.targets, request.loss
        self.token_weights = request.weights.divergence.float().contiguous()
        self.ids, self.vocab, self.is_wide = request.ids.long().contiguous(), request.vocab, is_wide
        self.weight, num_blocks = weight[: request.vocab], -(-request.vocab // VOCAB_BLOCK)
        head, num_tokens, device = PaddedHead(self.weight), len(hidden), hidden.device
        self.gradients = Gradients(hidden, weight, head, torch.float32, trained)
        # Logits of both sides in fp32. Or the teacher's in fp16, with the maxima of blocks of both sides: the student's
        # fp16 logits use the storage of the gradient.
        logits_bytes, maxima_bytes = (8 * head.padded, 0) if is_wide else (2 * head.padded, 8 * num_blocks)
        self.plan = Plan.of(
            num_tokens,
            request.workspace_gib or WORKSPACE_GIB["fused"],
            bytes_per_row=logits_bytes + maxima_bytes,
            gradient_bytes=2 * head.padded,
            is_compiled=False,
        )
        rows = min(self.plan.rows, self.plan.group)
        self.gradient = torch.empty(self.plan.group, head.padded, device=device, dtype=torch.bfloat16)
        sides, dtype = (2, torch.float32) if is_wide else (1, torch.float16)
        self.logits = torch.empty(sides, rows, head.padded, device=device, dtype=dtype)
        self.maxima = torch.empty(2, rows, num_blocks, device=device)
        self.stats, self.gradient_stats = new_statistics(num_tokens, self.vocab, is_fp32=is_wide, device=device)

    def is_within(self, limit: float) -> bool:
        """Run. False means that the gradient's expected error is above the limit, and the run stopped."""
        for chunks in self.plan.groups(len(self.hidden)):
            first, end = chunks[0][0], chunks[-1][1]
            for start, stop, _ in chunks:
                self._chunk(slice(start, stop), self.gradient[start - first : stop - first])
            numbers = HostCopy(gradient_numbers(self.gradient_stats[:end], self.token_weights[:end]))
            self.gradients.add_hidden(first, self.gradient[: end - first])
            if expected_error(numbers.read()) > limit:
                return False
            self.gradients.add_weight(first, self.gradient[: end - first])
        return True

    def _chunk(self, tokens: slice, gradient: Tensor) -> None:
        """Compute both heads' logits of one chunk, its statistics, and its gradient [n, padded]."""
        n, kept, logits = len(gradient), gradient[:, : self.vocab], self.logits[:, :, : self.vocab]
        if self.is_wide:
            student, teacher = Logits(logits[0, :n], None), Logits(logits[1, :n], None)
        else:
            maxima = self.maxima[:, :n]
            student, teacher = Logits(kept.view(torch.float16), maxima[0]), Logits(logits[0, :n], maxima[1])
        of_teacher = self.targets.hidden[tokens].to(self.targets.weight.dtype).contiguous()
        head_logits(of_teacher, self.targets.weight[: self.vocab], *teacher)
        head_logits(self.hidden[tokens].to(self.weight.dtype).contiguous(), self.weight, *student)
        divergence_rows(
            student,
            teacher,
            self.loss,
            token_ids=self.ids[tokens],
            weights=self.token_weights[tokens],
            stats=self.stats[tokens],
            gradient=kept,
            gradient_stats=self.gradient_stats[tokens],
        )

    def result(self) -> Forward:
        names = ("divergence", "entropy", "teacher_entropy", "log_prob", "teacher_log_prob")
        statistics = dict(zip(names, self.stats[:, :5].T.contiguous(), strict=True))
        statistics["nonfinite"] = self.stats[:, 5] == 0
        return Forward((self.stats[:, 0] * self.token_weights).sum(), statistics, *self.gradients.whole())
