"""The divergence from hidden states on a GPU: products, row kernel and both gradients, group by group of tokens."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from opd.losses.cuda.plan import LogitsPrecision, RowBytes, TokenGroup, plan_groups, plan_scores
from opd.losses.divergence import DivergenceKind

# The gradient's entries are at most a few nats times a probability: 2^6 leaves fp16 room for 1000 nats above and keeps
# probabilities of 1e-9 normal below. A larger peak is seen in the row kernel's numbers and repeated with a smaller scale.
GRADIENT_SCALE = 2.0**6
FP16_LIMIT = 65504.0
FP16_SAFE_PEAK = 2.0**14
STRIDE_MULTIPLE = 64  # entries: rows start on 128 bytes


class HeadPair(NamedTuple):
    """Both sides' inputs, cut to the entries that count; on each side hidden states and head share a 16-bit dtype."""

    student_hidden: Tensor
    student_head: Tensor
    teacher_hidden: Tensor
    teacher_head: Tensor


class Call(NamedTuple):
    """The arguments of one call that are no tensors."""

    kind: DivergenceKind
    beta: float
    temperature: float
    vocab: int
    workspace_bytes: int
    precision: LogitsPrecision
    max_relative_error: float
    with_gradient: bool


class Attempt(NamedTuple):
    """How logits and gradient are stored in one run over all tokens."""

    precision: LogitsPrecision
    gradient_scale: float


class _Redo(Exception):
    """The gradient of a group does not meet its bound as stored."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt


class FusedDivergence(torch.autograd.Function):
    """Inputs and outputs: `opd.losses.fused.fused_divergence`."""

    @staticmethod
    def forward(
        ctx: Any,
        student_hidden: Tensor,
        student_weight: Tensor,
        teacher_hidden: Tensor,
        teacher_weight: Tensor,
        token_weights: Tensor,
        token_ids: Tensor,
        call: Call,
    ) -> tuple[Any, ...]:
        need_hidden, need_weight = (call.with_gradient and needed for needed in ctx.needs_input_grad[:2])
        with torch.cuda.device(student_hidden.device), torch.autocast("cuda", enabled=False):
            run = _Run(student_hidden, student_weight, teacher_hidden, teacher_weight, token_weights, token_ids, call)
            run.to_the_bound(need_hidden, need_weight)
        columns = run.stats.unbind(1)
        nonfinite = columns[5] == 0
        loss_sum = (columns[0] * run.weights).sum() * run.weight_unit
        ctx.gradients = (run.grad_hidden, run.grad_weight)
        ctx.weight_grad_dtype = _grad_dtype(student_weight)
        per_token = (*(column.clone() for column in columns[:5]), nonfinite)
        ctx.mark_non_differentiable(*per_token)
        ctx.set_materialize_grads(False)
        return loss_sum, *per_token, run.attempt.precision, run.relative_error

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        from opd.losses.cuda.logits_kernel import scale_in_place

        grad_loss = grad_outputs[0]
        if grad_loss is None:
            return (None,) * 7
        if ctx.gradients is None:
            raise RuntimeError("fused_divergence: its gradients were handed out by an earlier backward; call it again")
        (grad_hidden, grad_weight), ctx.gradients = ctx.gradients, None
        if grad_hidden is not None:
            scale_in_place(grad_hidden, grad_loss.float())
        if grad_weight is not None and ctx.weight_grad_dtype == torch.float32:
            scale_in_place(grad_weight, grad_loss.float())
        elif grad_weight is not None:
            narrow = torch.empty_like(grad_weight, dtype=ctx.weight_grad_dtype)
            grad_weight = torch.mul(grad_weight, grad_loss, out=narrow)
        return grad_hidden, grad_weight, None, None, None, None, None


def _grad_dtype(weight: Tensor) -> torch.dtype:
    """The dtype in which autograd takes this tensor's gradient; a leaf may ask for another than its own, or for any."""
    if not weight.is_leaf:
        return weight.dtype
    return torch.float32 if weight.grad_dtype is None else weight.grad_dtype


class _Run:
    """One forward: inputs made ready, buffers, and the loop over groups."""

    def __init__(
        self,
        student_hidden: Tensor,
        student_weight: Tensor,
        teacher_hidden: Tensor,
        teacher_weight: Tensor,
        token_weights: Tensor,
        token_ids: Tensor,
        call: Call,
    ) -> None:
        from opd.losses.cuda.logits_kernel import VOCAB_BLOCK
        from opd.losses.cuda.row_kernel import NUM_STATS

        self.call = call
        self.student_hidden, self.student_weight = student_hidden, student_weight
        self.heads = HeadPair(
            student_hidden.to(student_weight.dtype).contiguous(),
            student_weight[: call.vocab],
            teacher_hidden.to(teacher_weight.dtype).contiguous(),
            teacher_weight[: call.vocab],
        )
        self.token_ids = token_ids
        self.num_tokens = len(student_hidden)
        self.stride = math.ceil(call.vocab / STRIDE_MULTIPLE) * STRIDE_MULTIPLE
        self.num_blocks = math.ceil(call.vocab / VOCAB_BLOCK)
        device = student_hidden.device
        self.stats = torch.zeros(self.num_tokens, NUM_STATS, device=device)
        self.weights, self.weight_unit = token_weights.float(), 1.0
        self.inputs_read = False
        self.bad_rows: Tensor | None = None
        self.attempt = Attempt(call.precision, GRADIENT_SCALE)
        self.relative_error = 0.0
        self.grad_hidden: Tensor | None = None
        self.grad_weight: Tensor | None = None

    def _read_inputs(self) -> None:
        """Make the weights fractions of a power of two near the largest, so that fp16 gradients keep their range.

        Waits for the device, so the first products are queued before it. Hidden states that are not finite become
        zeros for the head's gradient, every row of which 0 * nan would reach; their own rows the row kernel reports.
        """
        hidden = self.heads.student_hidden
        finite = torch.isfinite(hidden.sum(1, dtype=torch.float32))
        largest, all_finite = torch.stack([self.weights.abs().amax().double(), finite.all().double()]).tolist()
        if not math.isfinite(largest):
            raise ValueError("token_weights: holds nan or inf; a token that must not count has weight 0")
        if not all_finite:
            self.heads = self.heads._replace(
                student_hidden=torch.where(finite.unsqueeze(1), hidden, 0.0).to(hidden.dtype)
            )
            self.weights = self.weights.masked_fill(~finite, 0.0)
            self.bad_rows = ~finite
        self.weight_unit = 2.0 ** math.ceil(math.log2(largest)) if largest > 0 else 1.0
        self.weights = self.weights / self.weight_unit
        self.inputs_read = True

    def to_the_bound(self, need_hidden: bool, need_weight: bool) -> None:
        """Run over all tokens; again, with other storage, where a group's gradient misses the bound."""
        while True:
            try:
                self._over_all_tokens(need_hidden, need_weight)
                break
            except _Redo as redo:
                self.attempt = redo.attempt
                self.grad_hidden = self.grad_weight = None

    def _over_all_tokens(self, need_hidden: bool, need_weight: bool) -> None:
        self.reports: list[Tensor] = []
        if need_hidden:
            self.grad_hidden = torch.empty_like(self.student_hidden)
        if need_weight:
            self.grad_weight = torch.empty_like(self.student_weight, dtype=torch.float32)
        if not self.num_tokens:
            if self.grad_weight is not None:
                self.grad_weight.zero_()
            return
        row = RowBytes.of(self.stride, self.num_blocks, self.attempt.precision)
        budget = self.call.workspace_bytes
        if need_hidden or need_weight:
            borrowed = 0 if self.grad_weight is None else self.grad_weight.nbytes
            groups = plan_groups(self.num_tokens, row, workspace_bytes=budget, weight_grad_bytes=borrowed)
        else:
            groups = plan_scores(self.num_tokens, row, workspace_bytes=budget)
        buffers = _Buffers(self, groups, keeps_gradient=need_hidden or need_weight)
        for group in groups:
            for start, stop in group.chunks():
                self._logits_and_rows(buffers, group, start, stop)
            if need_hidden or need_weight:
                self._products(buffers, group)
                if group.start == 0 and len(groups) > 1:
                    self._check_reports()  # a batch that needs other storage shows it early, while products run
        if self.grad_weight is not None:
            self.grad_weight[self.call.vocab :].zero_()
        self._check_reports()
        self._clear_reported_rows()

    def _logits_and_rows(self, buffers: "_Buffers", group: TokenGroup, start: int, stop: int) -> None:
        """Both heads' logits of one chunk, its statistics, and its gradient into the group's buffer."""
        from opd.losses.cuda.logits_kernel import head_logits
        from opd.losses.cuda.row_kernel import GradientRows, divergence_rows, gradient_numbers

        call, heads, rows = self.call, self.heads, slice(start, stop)
        student, teacher, gradient = buffers.chunk(group, start, stop)
        head_logits(heads.teacher_hidden[rows], heads.teacher_head, *teacher)
        head_logits(heads.student_hidden[rows], heads.student_head, *student)
        if not self.inputs_read:
            self._read_inputs()
        target = None
        if gradient is not None:
            stats = buffers.grad_stats[: stop - start]
            target = GradientRows(gradient, self.weights[rows], self.attempt.gradient_scale, stats)
        options: dict[str, Any] = {"beta": call.beta, "temperature": call.temperature}
        divergence_rows(
            student,
            teacher,
            call.kind,
            token_ids=self.token_ids[rows],
            stats=self.stats[rows],
            gradient=target,
            **options,
        )
        if target is not None:
            self.reports.append(gradient_numbers(target, call.kind, **options))

    def _check_reports(self) -> None:
        """Wait for the gradients' numbers; start over with other storage where one misses its bound."""
        from opd.losses.cuda.row_kernel import gradient_report

        if not self.reports:
            return
        dtype = self.student_weight.dtype
        report = gradient_report(torch.stack(self.reports), dtype)
        if dtype == torch.float16 and report.peak > FP16_LIMIT:
            shrink = 2.0 ** math.ceil(math.log2(report.peak / FP16_SAFE_PEAK))
            raise _Redo(self.attempt._replace(gradient_scale=self.attempt.gradient_scale / shrink))
        if self.attempt.precision == "fp16" and report.relative_error > self.call.max_relative_error:
            raise _Redo(self.attempt._replace(precision="fp32"))
        self.relative_error = report.relative_error

    def _clear_reported_rows(self) -> None:
        """Zeros where a row was not finite: for its statistics, and for its hidden states' gradient (0 times an inf)."""
        if self.bad_rows is not None:
            self.stats.masked_fill_(self.bad_rows.unsqueeze(1), 0.0)
        reported = self.stats[:, 5] == 0
        if self.grad_hidden is not None and bool(reported.any()):
            self.grad_hidden.masked_fill_(reported.unsqueeze(1), 0.0)

    def _products(self, buffers: "_Buffers", group: TokenGroup) -> None:
        """Add the group's part of both gradients. Every product accumulates in fp32 and rounds once."""
        rows = slice(group.start, group.stop)
        gradient = buffers.gradient(group)
        unscale = self.weight_unit / self.attempt.gradient_scale
        if self.grad_hidden is not None:
            for start, stop in group.chunks():
                part = gradient[start - group.start : stop - group.start]
                product = torch.mm(
                    part,
                    self.heads.student_head,
                    out_dtype=torch.float32,
                    out=buffers.hidden_product(group, stop - start),
                )
                torch.mul(product, unscale, out=self.grad_hidden[start:stop])
        if self.grad_weight is not None:
            counted = self.grad_weight[: self.call.vocab]
            torch.addmm(
                counted,
                gradient.T,
                self.heads.student_hidden[rows],
                out_dtype=torch.float32,
                beta=0 if group.start == 0 else 1,
                alpha=unscale,
                out=counted,
            )


class _Buffers:
    """The workspace, cut anew for each group: its gradient rows, a chunk's logits, and the numbers beside them."""

    def __init__(self, run: _Run, groups: list[TokenGroup], *, keeps_gradient: bool) -> None:
        from opd.losses.cuda.row_kernel import CLUSTER, NUM_GRAD_STATS

        self.run = run
        self.is_fp16 = run.attempt.precision == "fp16"
        self.keeps_gradient = keeps_gradient
        self.row = RowBytes.of(run.stride, run.num_blocks, run.attempt.precision)
        device = run.student_hidden.device
        size = max(self._kept_bytes(g) + self._own_rows(g) * self.row.logits for g in groups)
        self.workspace = torch.empty(size, device=device, dtype=torch.uint8)
        most = max(self._chunk_rows(g) for g in groups)
        if self.is_fp16:
            self.block_max = torch.empty(2, most, run.num_blocks, device=device)
        if keeps_gradient:
            self.grad_stats = torch.empty(most, CLUSTER, NUM_GRAD_STATS, device=device)

    @staticmethod
    def _chunk_rows(group: TokenGroup) -> int:
        return min(group.logits_rows, group.stop - group.start)

    def _own_rows(self, group: TokenGroup) -> int:
        return 0 if group.in_weight_grad else self._chunk_rows(group)

    def _kept_bytes(self, group: TokenGroup) -> int:
        """fp16 logits of the student need the gradient's rows even where no gradient is made."""
        return (group.stop - group.start) * self.row.gradient if self.keeps_gradient or self.is_fp16 else 0

    def gradient(self, group: TokenGroup) -> Tensor:
        """[group's tokens, vocab] in the head's dtype, rows padded to the stride; the row kernel fills it."""
        kept = self.workspace[: self._kept_bytes(group)].view(self.run.student_weight.dtype)
        return kept.view(-1, self.run.stride)[:, : self.run.call.vocab]

    def _logits_storage(self, group: TokenGroup) -> Tensor:
        """Bytes that hold a chunk's logits, and the hidden states' product after them."""
        if group.in_weight_grad and self.run.grad_weight is not None:
            return self.run.grad_weight.view(-1).view(torch.uint8)
        return self.workspace[self._kept_bytes(group) :]

    def chunk(self, group: TokenGroup, start: int, stop: int) -> tuple[Any, Any, Tensor | None]:
        """(student logits, teacher logits, gradient rows) of one chunk, each [n, vocab] views."""
        from opd.losses.cuda.row_kernel import Logits

        n, stride, vocab = stop - start, self.run.stride, self.run.call.vocab
        kept = self.gradient(group)[start - group.start : stop - group.start]
        storage = self._logits_storage(group)[: n * self.row.logits]
        if self.is_fp16:
            teacher = storage.view(torch.float16).view(n, stride)[:, :vocab]
            student_max, teacher_max = self.block_max[:, :n]
            student = Logits(kept.view(torch.float16), student_max)
            return student, Logits(teacher, teacher_max), kept if self.keeps_gradient else None
        both = storage.view(torch.float32).view(2, n, stride)[:, :, :vocab]
        return Logits(both[0], None), Logits(both[1], None), kept if self.keeps_gradient else None

    def hidden_product(self, group: TokenGroup, num_rows: int) -> Tensor:
        """[num_rows, d_S] fp32, where the chunk's logits were (they are larger, but for a tiny vocabulary)."""
        width = self.run.student_hidden.shape[1]
        storage = self._logits_storage(group)
        if storage.nbytes < num_rows * width * 4:
            return torch.empty(num_rows, width, device=storage.device)
        return storage[: num_rows * width * 4].view(torch.float32).view(num_rows, width)
