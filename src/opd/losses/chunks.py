"""The loop over chunks of tokens: their logits, their gradient, and the products that turn it into gradients of the inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from opd.losses.chunk import FP16_SCALE, Chunk, Form, chunk_loss, compiled
from opd.losses.divergences import compute_dtype
from opd.losses.padded_head import PaddedHead, accumulate, padded_entries
from opd.losses.terms import EventTargets, HiddenTargets, Request

PLAIN_ROWS = 256
WORKSPACE_GIB = 2.6
SMALLEST_ROWS, LARGEST_ROWS = 128, 2048
TAIL = 4
"""The last tokens run in chunks of a quarter: chunks have two shapes, and little of the last one is padding."""
TOP_BLOCK = 64
OF_ROWS = ("log_prob", "divergence", "entropy", "teacher_entropy")
"""Statistics of whole rows of logits: one of them is nan or infinite where a row is not finite."""


class Forward(NamedTuple):
    """The result of a forward. A gradient that is not needed is None."""

    loss: Tensor
    statistics: dict[str, Tensor]
    grad_hidden: Tensor | None = None
    grad_weight: Tensor | None = None
    backend: str = "plain"
    facts: Mapping[str, Any] = MappingProxyType({})
    scale: Callable[[Tensor, Tensor], Any] = Tensor.mul_
    """Multiplies a gradient by a scalar on its device, in place."""


class Plan(NamedTuple):
    """Sizes of a call: rows of a chunk, rows of its last chunks, and rows whose gradient is kept for one product.

    A `tail` of 0 means that the last chunk has exactly the tokens that are left.
    """

    rows: int
    tail: int
    group: int

    @classmethod
    def of(cls, num_tokens: int, workspace_gib: float | None, *, bytes_per_row: int, gradient_bytes: int) -> Plan:
        """Return the sizes that fit the workspace. Chunks have a power of two of rows, whatever the number of tokens.

        Args:
            bytes_per_row: of a token's logits. gradient_bytes: of its logits' gradient.
        """
        workspace = int((workspace_gib or WORKSPACE_GIB) * 2**30)
        fits = max(workspace // 2 // bytes_per_row, SMALLEST_ROWS)
        rows = min(1 << (fits.bit_length() - 1), LARGEST_ROWS)
        group = max((workspace - rows * bytes_per_row) // gradient_bytes // rows, 1) * rows
        even = -(-num_tokens // -(-max(num_tokens, 1) // group))
        return cls(rows, max(rows // TAIL, 1), min(-(-even // rows) * rows, group))

    def groups(self, num_tokens: int) -> Iterator[list[tuple[int, int, int]]]:
        """Yield (start, stop, rows of the chunk) of each group's chunks. No tokens are one empty chunk."""
        for first in range(0, max(num_tokens, 1), self.group):
            start, end = first, min(first + self.group, num_tokens)
            chunks: list[tuple[int, int, int]] = []
            while start < end or not chunks:
                left = end - start
                rows = self.rows if left > (TAIL - 1) * self.tail else self.tail
                rows = rows if self.tail else min(self.rows, left)
                chunks.append((start, min(start + rows, end), rows))
                start += rows
            yield chunks


def run_chunks(
    hidden: Tensor, weight: Tensor, request: Request, *, need_hidden: bool, need_weight: bool, compile: bool
) -> Forward:
    """Run the forward of `head_loss` in the plain or the compiled form."""
    return _Run(hidden, weight, request, need_hidden, need_weight, compile and len(hidden) > 0).forward()


class _Run:
    """One forward, and its buffers."""

    def __init__(
        self, hidden: Tensor, weight: Tensor, request: Request, need_hidden: bool, need_weight: bool, compile: bool
    ) -> None:
        self.request, self.form, self.compile = request, Form.of(request), compile
        self.hidden, self.targets, self.num_rows = hidden, request.targets, len(weight)
        teacher = self.targets if isinstance(self.targets, HiddenTargets) else None
        floats = [hidden, weight, *(teacher or ())]
        self.dtype = compute_dtype(*floats)
        self.head = self._head(weight)
        self.teacher_head = None if teacher is None else self._head(teacher.weight)
        self.entries = padded_entries(request.vocab)
        self.makes_gradient = need_hidden or need_weight
        self.grad_hidden = torch.empty_like(hidden) if need_hidden else None
        # The product that writes it runs over a rounded number of entries too.
        rows = max(len(weight), self.entries)
        self.grad_weight = weight.new_empty(rows, weight.shape[1], dtype=self.dtype) if need_weight else None
        num_sides = 1 if teacher is None else 2
        rows = min(request.chunk or PLAIN_ROWS, max(len(hidden), 1))
        self.plan = Plan(rows, 0, rows)
        if compile:
            self.plan = Plan.of(
                len(hidden),
                request.workspace_gib,
                bytes_per_row=num_sides * self.dtype.itemsize * self.entries,
                gradient_bytes=self.head.dtype.itemsize * self.entries,
            )
        make = hidden.new_empty
        self.logits = [make(self.plan.rows, self.entries, dtype=self.dtype) for _ in range(num_sides)]
        self.gradient = make(self.plan.group, self.entries, dtype=self.head.dtype) if self.makes_gradient else None
        has_events = isinstance(self.targets, EventTargets) or bool(self.form.top_k)
        self.is_event = make(self.plan.rows, self.entries, dtype=torch.bool) if has_events else None

    def _head(self, weight: Tensor) -> PaddedHead:
        """Return the entries that count; a CUDA device multiplies 16-bit heads as they are."""
        counted = weight.detach()[: self.request.vocab]
        is_half = weight.dtype in (torch.bfloat16, torch.float16)
        keeps = weight.device.type == "cuda" and is_half and self.dtype == torch.float32
        return PaddedHead(counted if keeps else counted.to(self.dtype))

    def forward(self) -> Forward:
        parts: list[dict[str, Tensor]] = []
        for chunks in self.plan.groups(len(self.hidden)):
            parts += [self._chunk(chunks[0][0], *chunk) for chunk in chunks]
            self._products(chunks[0][0], chunks[-1][1])
        if self.grad_weight is not None:
            self.grad_weight[self.request.vocab :] = 0
            self.grad_weight = self.grad_weight[: self.num_rows]
        statistics = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        loss = statistics.pop("loss").sum()
        backend = "compiled" if self.compile else "plain"
        seen = [statistics[name] for name in OF_ROWS if name in statistics]
        statistics["nonfinite"] = ~torch.isfinite(torch.stack(seen)).all(0)
        return Forward(loss, statistics, self.grad_hidden, self.grad_weight, backend)

    def _chunk(self, group: int, start: int, stop: int, rows: int) -> dict[str, Tensor]:
        """Return the statistics of a chunk, whose gradient goes to its rows of the group's."""

        def padded(values: Tensor) -> Tensor:
            values = values[start:stop]
            return (
                values if rows == stop - start else pad(values, (0, 0) * (values.dim() - 1) + (0, rows - len(values)))
            )

        student, *teacher = (logits[:rows] for logits in self.logits)
        self.head.logits(padded(self.hidden).to(self.head.dtype), student)
        events = log_probs = None
        if self.teacher_head is not None:
            assert isinstance(self.targets, HiddenTargets)
            self.teacher_head.logits(padded(self.targets.hidden).to(self.teacher_head.dtype), teacher[0])
            if self.form.top_k:
                events = top_entries(teacher[0], min(self.form.top_k, self.request.vocab))
        elif isinstance(self.targets, EventTargets):
            events, log_probs = padded(self.targets.ids), padded(self.targets.log_probs)
        is_event = None
        if events is not None and self.is_event is not None:
            is_event = self.is_event[:rows].fill_(False).scatter_(1, events, True)
        per_token = {
            name: None if each is None else padded(each).to(self.dtype) for name, each in self.request.per_token.items()
        }
        x = Chunk(
            student=student,
            teacher=teacher[0] if teacher else None,
            events=events,
            is_event=is_event,
            event_log_probs=log_probs,
            ids=padded(self.request.ids),
            **per_token,
        )
        out = None if self.gradient is None else self.gradient[start - group : start - group + rows]
        run = compiled(self.form, *student.shape) if self.compile else None
        statistics, at_events = chunk_loss(self.form, x, out) if run is None else run(x, out)
        if out is not None and events is not None and at_events is not None:
            out.scatter_(1, events, at_events)
        return {name: values[: stop - start] for name, values in statistics.items()}

    def _products(self, start: int, stop: int) -> None:
        """Turn the gradient of a group's logits into its part of the inputs' gradients."""
        if self.gradient is None:
            return
        gradient = self.gradient[: stop - start]
        unit = 1.0 / FP16_SCALE if gradient.dtype == torch.float16 else 1.0
        if self.grad_hidden is not None:
            product = self.hidden.new_empty(stop - start, self.hidden.shape[1], dtype=self.dtype)
            self.grad_hidden[start:stop] = self.head.hidden_gradient(gradient, product, unit)
        if self.grad_weight is not None:
            states = self.hidden[start:stop].to(gradient.dtype)
            accumulate(self.grad_weight[: self.entries], gradient.T, states, beta=float(start > 0), alpha=unit)


def top_entries(logits: Tensor, k: int) -> Tensor:
    """Return the columns [C, k] of the largest logits of each row.

    They are in the k blocks with the largest maxima: one read of the logits, where `topk` reads them many times.
    """
    blocks = logits.unflatten(1, (-1, TOP_BLOCK))
    if k >= blocks.shape[1]:
        return logits.topk(k, -1).indices
    best = blocks.amax(-1).topk(k, -1).indices
    found = blocks.gather(1, best.unsqueeze(-1).expand(-1, -1, TOP_BLOCK)).flatten(1).topk(k, -1).indices
    top: Tensor = best.gather(1, found // TOP_BLOCK) * TOP_BLOCK + found % TOP_BLOCK
    return top
