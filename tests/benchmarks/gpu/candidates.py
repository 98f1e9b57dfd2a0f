"""What the benchmark compares: one forward and backward of each design on the same batch, mean over tokens."""

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tests.benchmarks.gpu.measure import Step
from torch import Tensor

from opd.losses.chunked import chunked_divergence
from opd.losses.divergence import DivergenceKind, divergence
from opd.losses.fused import StorageMemory, head_divergence

ORIGINAL_CHUNK = 512  # opd.chunk_size of the original
COMPILED_CHUNK = 2048
PLAIN_CHUNK = 1024
JSD_BETA = 0.5
LIGER_CHUNK = 1024  # its default
LIGER_BETA = {"forward_kl": 0.0, "reverse_kl": 1.0, "jsd": JSD_BETA}


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Leaf tensors on the device: bf16 hidden states, and heads of the same values in either 16-bit format."""

    student_hidden: Tensor
    student_weight: Tensor
    teacher_hidden: Tensor
    teacher_weight: Tensor
    entries: int
    """Of the vocabulary, that count: the tokenizer's. The heads' rows behind them are 0, as good as never trained, so that
    candidates that know no padding have nearly the same gradients."""

    @classmethod
    def random(
        cls,
        tokens: int,
        entries: int,
        head_rows: tuple[int, int],
        widths: tuple[int, int],
        *,
        peaked: bool,
        dtype: torch.dtype,
    ) -> "Batch":
        """Logits of standard deviation 2, or peaked ones: maxima near 40, entropy below 0.5, a tenth of the rows at odds.

        Args:
            head_rows, widths: of student and teacher.
        """
        torch.manual_seed(0)
        std = 6.0 if peaked else 2.0
        sides = []
        favourite = torch.randint(0, entries, (tokens,), device="cuda")
        for side, (rows, width) in enumerate(zip(head_rows, widths, strict=True)):
            hidden = torch.randn(tokens, width, device="cuda").bfloat16()
            weight = (torch.randn(rows, width, device="cuda") * (std / math.sqrt(width))).bfloat16()
            weight[entries:] = 0.0
            if peaked:
                chosen = torch.where(
                    torch.arange(tokens, device="cuda") % 10 == 0, (favourite + side) % entries, favourite
                )
                row = weight[chosen].float()
                missing = 39.0 + torch.randn(tokens, device="cuda") - (hidden.float() * row).sum(1)
                hidden = (hidden.float() + row * (missing / row.square().sum(1)).unsqueeze(1)).bfloat16()
            sides += [hidden, weight.to(dtype)]
        sides[0].requires_grad_()
        sides[1].requires_grad_()
        return cls(
            student_hidden=sides[0],
            student_weight=sides[1],
            teacher_hidden=sides[2],
            teacher_weight=sides[3],
            entries=entries,
        )

    @classmethod
    def near(cls, tokens: int, entries: int, head_rows: tuple[int, int], widths: tuple[int, int]) -> "Batch":
        """A teacher whose head is the student's with 1 % of noise: a mean divergence near 3e-4."""
        batch = cls.random(tokens, entries, head_rows, widths, peaked=False, dtype=torch.bfloat16)
        student_hidden, weight = batch.student_hidden.detach(), batch.student_weight.detach()
        batch.teacher_hidden[:, : widths[0]] = student_hidden
        batch.teacher_weight.zero_()
        batch.teacher_weight[:entries, : widths[0]] = (weight + 0.01 * weight.std() * torch.randn_like(weight))[
            :entries
        ]
        return batch

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.student_hidden, self.student_weight, self.teacher_hidden, self.teacher_weight

    def head(self, tokens: int) -> "Batch":
        """The first tokens, on the same heads."""
        return Batch(
            student_hidden=self.student_hidden[:tokens].detach().requires_grad_(),
            student_weight=self.student_weight,
            teacher_hidden=self.teacher_hidden[:tokens],
            teacher_weight=self.teacher_weight,
            entries=self.entries,
        )

    def gradients(self, loss: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Run the backward, then take and clear the gradients."""
        if loss is not None:
            loss.backward()
        taken = self.student_hidden.grad, self.student_weight.grad
        self.student_hidden.grad = self.student_weight.grad = None
        assert taken[0] is not None
        assert taken[1] is not None
        return taken[0], taken[1]


def exact_gradients(batch: Batch, kind: DivergenceKind) -> tuple[Tensor, Tensor]:
    """Both gradients in float64 by the project's plain path."""
    double = [tensor.detach().double() for tensor in batch.tensors]
    double[0].requires_grad_()
    double[1].requires_grad_()
    weights = torch.full((len(double[0]),), 1.0 / len(double[0]), device="cuda", dtype=torch.float64)
    output = chunked_divergence(
        *double,
        kind,
        token_weights=weights,
        beta=JSD_BETA,
        temperature=1.0,
        chunk_size=512,
        valid_vocab=batch.entries,
    )
    output.loss_sum.backward()
    assert double[0].grad is not None
    assert double[1].grad is not None
    return double[0].grad, double[1].grad


class Ours:
    """`head_divergence` with per-token outputs, in a run of calls; `facts` tells how the last one stored its logits."""

    def __init__(self, batch: Batch, kind: DivergenceKind, workspace_gib: float, precision: str | None = None) -> None:
        self.batch, self.precision, self.memory = batch, precision, StorageMemory()
        tokens = len(batch.student_hidden)
        self.weights = torch.full((tokens,), 1.0 / tokens, device="cuda")
        self.ids = torch.arange(tokens, device="cuda")
        self.options: dict[str, Any] = {
            "kind": kind,
            "beta": JSD_BETA,
            "chunk_size": PLAIN_CHUNK,
            "workspace_gib": workspace_gib,
            "valid_vocab": batch.entries,
        }
        self.facts: dict[str, Any] = {}

    def __call__(self) -> tuple[Tensor, Tensor]:
        self.batch.student_weight.grad_dtype = torch.float32
        output = head_divergence(
            *self.batch.tensors,
            token_weights=self.weights,
            token_ids=self.ids,
            backend="fused",
            precision=self.precision or self.memory.precision,
            **self.options,
        )
        self.memory.learn(output.precision)
        self.facts = {"logits": output.precision, "expected_error": output.expected_error}
        return self.batch.gradients(output.loss_sum)


def plain(batch: Batch, kind: DivergenceKind) -> Step:
    """`chunked_divergence`: the trainer's fallback, fp32 products."""
    tokens = len(batch.student_hidden)
    weights = torch.full((tokens,), 1.0 / tokens, device="cuda")

    def step() -> tuple[Tensor, Tensor]:
        batch.student_weight.grad_dtype = torch.float32
        output = chunked_divergence(
            *batch.tensors,
            kind,
            token_weights=weights,
            beta=JSD_BETA,
            temperature=1.0,
            chunk_size=PLAIN_CHUNK,
            valid_vocab=batch.entries,
        )
        return batch.gradients(output.loss_sum)

    return step


def _own_dtype(batch: Batch) -> None:
    batch.student_weight.grad_dtype = batch.student_weight.dtype


def naive(batch: Batch, kind: DivergenceKind) -> Step:
    """All logits at once, plain autograd."""

    def step() -> tuple[Tensor, Tensor]:
        _own_dtype(batch)
        student, student_head, teacher, teacher_head = batch.tensors
        value = divergence(student @ student_head.T, teacher @ teacher_head.T, kind, beta=JSD_BETA)
        return batch.gradients(value.mean())

    return step


def original(batch: Batch, kind: DivergenceKind) -> Step:
    """The original's design: teacher logits to pageable host memory and back, a chunked loss under autograd."""

    def step() -> tuple[Tensor, Tensor]:
        _own_dtype(batch)
        student, student_head, teacher, teacher_head = batch.tensors
        with torch.no_grad():
            cached = (teacher @ teacher_head.T).cpu()
        teacher_logits = cached.to("cuda")
        student_logits = student @ student_head.T
        total = torch.zeros((), device="cuda")
        for start in range(0, len(student), ORIGINAL_CHUNK):
            rows = slice(start, start + ORIGINAL_CHUNK)
            total = total + divergence(student_logits[rows], teacher_logits[rows], kind, beta=JSD_BETA).sum()
        return batch.gradients(total / len(student))

    return step


def compiled(batch: Batch, kind: DivergenceKind) -> Step:
    """torch.compile of the plain reference, a backward for each chunk, so that its memory is bounded too."""

    @torch.compile
    def loss(student: Tensor, student_head: Tensor, teacher: Tensor, teacher_head: Tensor) -> Tensor:
        return divergence(student @ student_head.T, teacher @ teacher_head.T, kind, beta=JSD_BETA).sum()

    def step() -> tuple[Tensor, Tensor]:
        _own_dtype(batch)
        student, student_head, teacher, teacher_head = batch.tensors
        tokens = len(student)
        for start in range(0, tokens, COMPILED_CHUNK):
            rows = slice(start, start + COMPILED_CHUNK)
            (loss(student[rows], student_head, teacher[rows], teacher_head) / tokens).backward()
        return batch.gradients()

    return step


def liger_fused(batch: Batch, kind: DivergenceKind) -> Step:
    from liger_kernel.transformers.fused_linear_jsd import LigerFusedLinearJSD

    loss = LigerFusedLinearJSD(jsd_beta=LIGER_BETA[kind])

    def step() -> tuple[Tensor, Tensor]:
        _own_dtype(batch)
        return batch.gradients(loss(*batch.tensors, None))

    return step


def liger_chunked(batch: Batch, kind: DivergenceKind) -> Step:
    from liger_kernel.chunked_loss.jsd_loss import LigerFusedLinearJSDLoss

    loss = LigerFusedLinearJSDLoss(
        weight_hard_loss=0.0, weight_soft_loss=1.0, beta=LIGER_BETA[kind], compiled=True, chunk_size=LIGER_CHUNK
    )
    labels = torch.zeros(len(batch.student_hidden), dtype=torch.int64, device="cuda")

    def step() -> tuple[Tensor, Tensor]:
        _own_dtype(batch)
        return batch.gradients(loss(*batch.tensors, labels))

    return step


BASELINES: dict[str, Callable[[Batch, str], Step]] = {
    "naive": naive,
    "original": original,
    "torch.compile of the plain path": compiled,
    "plain chunked (fp32 products)": plain,
}
LIGER_CHUNKED = "Liger chunked loss, compiled"
if importlib.util.find_spec("liger_kernel") is None:
    print("liger-kernel is not installed: its two paths are left out", flush=True)
else:
    BASELINES |= {"Liger fused_linear_jsd": liger_fused, LIGER_CHUNKED: liger_chunked}
