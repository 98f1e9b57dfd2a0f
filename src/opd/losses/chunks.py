"""The loop over chunks of tokens: their logits, their gradient, and the products that turn it into gradients of the inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from opd.head_form import WORKSPACE_GIB
from opd.losses.chunk import FP16_SCALE, Chunk, Form, Kept, Result, chunk_loss, compiled
from opd.losses.divergences import FLOOR, compute_dtype
from opd.losses.padded_head import PaddedHead, accumulate, add_rows, padded_entries
from opd.losses.terms import EventTargets, HiddenTargets, Request

PLAIN_ROWS = 256
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
        workspace = int((workspace_gib or WORKSPACE_GIB["compiled"]) * 2**30)
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
        self.hidden, self.weight, self.targets = hidden, weight.detach(), request.targets
        teacher = self.targets if isinstance(self.targets, HiddenTargets) else None
        self.dtype = compute_dtype(hidden, weight, *(teacher or ()))
        self.head = self._head(self.weight)
        self.teacher_head = None if teacher is None else self._head(teacher.weight)
        entries = padded_entries(request.vocab)
        self.has_events = isinstance(self.targets, EventTargets) or self.form.top_k > 0
        is_own = request.targets is not None and request.loss.divergence.params is None and not self.has_events
        self.width = request.vocab if is_own else entries
        self.grad_hidden = torch.empty_like(hidden) if need_hidden else None
        # The product that writes it runs over a rounded number of entries too.
        rows = max(len(weight), entries)
        self.grad_weight = weight.new_empty(rows, weight.shape[1], dtype=self.dtype) if need_weight else None
        num_sides = 1 if teacher is None else 2
        rows = min(request.chunk or PLAIN_ROWS, max(len(hidden), 1))
        self.plan = Plan(rows, 0, rows)
        if compile:
            self.plan = Plan.of(
                len(hidden),
                request.workspace_gib,
                bytes_per_row=num_sides * self.dtype.itemsize * entries,
                gradient_bytes=self.head.dtype.itemsize * entries,
            )
        make = hidden.new_empty
        self.logits = [make(self.plan.rows, entries, dtype=self.dtype) for _ in range(num_sides)]
        self.gradient = None
        if need_hidden or need_weight:
            self.gradient = make(self.plan.group, entries, dtype=self.head.dtype)
            self.gradient[:, self.width :] = 0

    def _head(self, weight: Tensor) -> PaddedHead:
        """Return the entries that count; a CUDA device multiplies 16-bit heads as they are."""
        counted = weight.detach()[: self.request.vocab]
        is_half = weight.dtype in (torch.bfloat16, torch.float16)
        keeps = weight.device.type == "cuda" and is_half and self.dtype == torch.float32
        return PaddedHead(counted if keeps else counted.to(self.dtype))

    def forward(self) -> Forward:
        parts: list[dict[str, Tensor]] = []
        for chunks in self.plan.groups(len(self.hidden)):
            results = [self._chunk(chunks[0][0], *chunk) for chunk in chunks]
            parts += [result.statistics for result in results]
            kept = [result.kept for result in results if result.kept is not None]
            self._products(
                chunks[0][0], chunks[-1][1], Kept(*map(torch.cat, zip(*kept, strict=True))) if kept else None
            )
        if self.grad_weight is not None:
            self.grad_weight[self.request.vocab :] = 0
            self.grad_weight = self.grad_weight[: len(self.weight)]
        statistics = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        loss = statistics.pop("loss").sum()
        backend = "compiled" if self.compile else "plain"
        seen = [statistics[name] for name in OF_ROWS if name in statistics]
        statistics["nonfinite"] = ~torch.isfinite(torch.stack(seen)).all(0)
        return Forward(loss, statistics, self.grad_hidden, self.grad_weight, backend)

    def _chunk(self, group: int, start: int, stop: int, rows: int) -> Result:
        """Run a chunk, whose gradient goes to its rows of the group's."""

        def padded(values: Tensor) -> Tensor:
            values = values[start:stop]
            missing = rows - len(values)
            return pad(values, (0, 0) * (values.dim() - 1) + (0, missing)) if missing else values

        student, *teacher = (logits[:rows] for logits in self.logits)
        self.head.logits(padded(self.hidden).to(self.head.dtype), student)
        events = event_logits = event_targets = None
        if self.teacher_head is not None:
            assert isinstance(self.targets, HiddenTargets)
            self.teacher_head.logits(padded(self.targets.hidden).to(self.teacher_head.dtype), teacher[0])
            if self.form.top_k:
                events = top_entries(teacher[0], min(self.form.top_k, self.request.vocab))
                event_targets = _taken(teacher[0], events)
        elif isinstance(self.targets, EventTargets):
            events, event_targets = padded(self.targets.ids), padded(self.targets.log_probs)
        if events is not None:
            event_logits = _taken(student, events)
        per_token = {
            name: None if each is None else padded(each).to(self.dtype) for name, each in self.request.per_token.items()
        }
        x = Chunk(
            student=student[:, : self.width],
            teacher=teacher[0][:, : self.width] if teacher else None,
            events=events,
            event_logits=event_logits,
            event_targets=event_targets,
            ids=padded(self.request.ids),
            **per_token,
        )
        out = None if self.gradient is None else self.gradient[start - group : start - group + rows, : self.width]
        run: Callable[[Chunk, Tensor | None], Result] = functools.partial(chunk_loss, self.form)
        if self.compile:
            run = compiled(self.form, *x.student.shape)
        statistics, at_events, kept = run(x, out)
        statistics = {name: values[: stop - start] for name, values in statistics.items()}
        if out is not None and events is not None and at_events is not None:
            out.scatter_(1, events, at_events)
        if out is not None and kept is not None:
            out.scatter_(1, kept.columns, 0.0)
            kept = Kept(*(each[: stop - start] for each in kept))
        return Result(statistics, None, kept)

    def _products(self, start: int, stop: int, kept: Kept | None) -> None:
        """Turn the gradient of a group's logits into its part of the inputs' gradients."""
        if self.gradient is None:
            return
        gradient = self.gradient[: stop - start]
        unit = 1.0 / FP16_SCALE if gradient.dtype == torch.float16 else 1.0
        entries: list[tuple[Tensor, ...]] = [] if kept is None else [each.unbind(1) for each in kept]
        if self.grad_hidden is not None:
            product = self.hidden.new_empty(stop - start, self.hidden.shape[1], dtype=self.dtype)
            self.head.hidden_gradient(gradient, product, unit)
            for columns, values in zip(*entries, strict=True):
                product.addcmul_(self.weight[columns].to(self.dtype), values.unsqueeze(1))
            self.grad_hidden[start:stop] = product
        if self.grad_weight is not None:
            states = self.hidden[start:stop]
            product_of = self.grad_weight[: self.head.padded]
            accumulate(product_of, gradient.T, states.to(gradient.dtype), beta=float(start > 0), alpha=unit)
            for columns, values in zip(*entries, strict=True):
                add_rows(self.grad_weight, columns, values.unsqueeze(1) * states)


def _taken(logits: Tensor, events: Tensor) -> Tensor:
    """Return the logits [C, k] of events, and leave the lowest logit in their places."""
    found = logits.gather(1, events)
    logits.scatter_(1, events, FLOOR)
    return found


def top_entries(logits: Tensor, k: int) -> Tensor:
    """Return the columns [C, k] of the largest logits of each row.

    They are in the k blocks with the largest maxima: one read of the logits, where `topk` reads them many times.
    """
    blocks = logits.unflatten(1, (-1, TOP_BLOCK))
    if k >= blocks.shape[1]:
        return logits.topk(k, -1, sorted=False).indices
    best = blocks.amax(-1).topk(k, -1, sorted=False).indices
    found = blocks.gather(1, best.unsqueeze(-1).expand(-1, -1, TOP_BLOCK)).flatten(1)
    found = found.topk(k, -1, sorted=False).indices
    top: Tensor = best.gather(1, found // TOP_BLOCK) * TOP_BLOCK + found % TOP_BLOCK
    return top
