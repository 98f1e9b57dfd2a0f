"""The loop over chunks of tokens: their logits, their gradient, and its products for the gradients of the inputs."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from opd.head_form import WORKSPACE_GIB
from opd.losses.chunk import FP16_SCALE, Chunk, Form, Result, chunk_loss, compiled
from opd.losses.divergences import FLOOR, compute_dtype
from opd.losses.padded_head import Gradients, Kept, PaddedHead, Trained
from opd.losses.terms import EventTargets, HiddenTargets, Request

PLAIN_ROWS = 256
SMALLEST_ROWS, LARGEST_ROWS = 128, 2048
TAIL = 4  # the last tokens run in chunks of a quarter: chunks have two shapes, and little of the last one is padding
TOP_BLOCKS = (64, 8, 1)
OF_ROWS = ("log_prob", "divergence", "entropy", "teacher_entropy")
"""Statistics of whole rows of logits: one of them is nan or infinite where a row is not finite."""


class Forward(NamedTuple):
    """The result of a forward. A gradient that is not needed is None."""

    loss: Tensor
    statistics: dict[str, Tensor]
    grad_hidden: Tensor | None = None
    grad_weight: Tensor | None = None


class Plan(NamedTuple):
    """Sizes of a call."""

    rows: int  # of a chunk
    tail: int  # rows of the last chunks; 0 means exactly the tokens that are left
    group: int  # rows whose gradient is kept for one product

    @classmethod
    def of(
        cls, num_tokens: int, workspace_gib: float, *, bytes_per_row: int, gradient_bytes: int, is_compiled: bool = True
    ) -> "Plan":
        """Return the sizes that fit the workspace. Chunks have a power of two of rows, for any number of tokens.

        Args:
            bytes_per_row: of a token's logits. gradient_bytes: of its logits' gradient.
            is_compiled: True for chunks of two shapes. Else groups end anywhere, so that there are fewer of them.
        """
        workspace, largest = int(workspace_gib * 2**30), LARGEST_ROWS if is_compiled else LARGEST_ROWS // 2
        fits = max(workspace // 2 // bytes_per_row, SMALLEST_ROWS)
        rows = min(1 << (fits.bit_length() - 1), largest)
        unit = rows if is_compiled else SMALLEST_ROWS
        group = max((workspace - rows * bytes_per_row) // gradient_bytes // unit, 1) * unit
        even = -(-num_tokens // -(-max(num_tokens, 1) // group))
        return cls(rows, max(rows // TAIL, 1) if is_compiled else 0, min(-(-even // unit) * unit, group))

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


def run_chunks(hidden: Tensor, weight: Tensor, request: Request, trained: Trained, *, compile: bool) -> Forward:
    """Run the forward of `head_loss` in the plain or the compiled form."""
    return _Run(hidden, weight.detach(), request, trained, compile and len(hidden) > 0).forward()


def counted_head(weight: Tensor, vocab: int, dtype: torch.dtype) -> PaddedHead:
    """Return the entries that count, for logits of a dtype; a CUDA device multiplies 16-bit heads as they are."""
    counted, is_half = weight.detach()[:vocab], weight.dtype in (torch.bfloat16, torch.float16)
    keeps = weight.device.type == "cuda" and is_half and dtype == torch.float32
    return PaddedHead(counted if keeps else counted.to(dtype))


class _Run:
    """One forward, and its buffers."""

    def __init__(self, hidden: Tensor, weight: Tensor, request: Request, trained: Trained, compile: bool) -> None:
        self.request, self.form, self.compile = request, Form.of(request), compile
        self.hidden, self.targets, num_tokens = hidden, request.targets, len(hidden)
        teacher = self.targets if isinstance(self.targets, HiddenTargets) else None
        self.dtype = compute_dtype(hidden, weight, *(teacher or ()))
        weights = [weight, *([] if teacher is None else [teacher.weight])]
        self.heads = [counted_head(each, request.vocab, self.dtype) for each in weights]
        self.gradients = Gradients(hidden, weight, self.heads[0], self.dtype, trained)
        entries, rows = self.heads[0].padded, min(request.chunk or PLAIN_ROWS, max(num_tokens, 1))
        has_events = isinstance(self.targets, EventTargets) or request.loss.top_k > 0
        is_own = self.targets is not None and request.loss.divergence.params is None and not has_events
        self.width = request.vocab if is_own else entries
        self.plan = Plan(rows, 0, rows)
        if compile:
            self.plan = Plan.of(
                num_tokens,
                request.workspace_gib or WORKSPACE_GIB["compiled"],
                bytes_per_row=len(self.heads) * self.dtype.itemsize * entries,
                gradient_bytes=self.heads[0].dtype.itemsize * entries,
            )
        self.logits = [hidden.new_empty(self.plan.rows, entries, dtype=self.dtype) for _ in self.heads]
        self.gradient = None
        if any(trained):
            self.gradient = hidden.new_empty(self.plan.group, entries, dtype=self.heads[0].dtype)
            self.gradient[:, self.width :] = 0

    def forward(self) -> Forward:
        """Return the loss, the statistics and the gradients."""
        parts: list[dict[str, Tensor]] = []
        for chunks in self.plan.groups(len(self.hidden)):
            start, stop = chunks[0][0], chunks[-1][1]
            results = [self._chunk(start, *chunk) for chunk in chunks]
            parts += [result.statistics for result in results]
            if self.gradient is not None:
                kept = [result.kept for result in results if result.kept is not None]
                whole = Kept(*map(torch.cat, zip(*kept, strict=True))) if kept else None
                gradient = self.gradient[: stop - start]
                unit = 1.0 / FP16_SCALE if gradient.dtype == torch.float16 else 1.0
                self.gradients.add_hidden(start, gradient, unit, whole)
                self.gradients.add_weight(start, gradient, unit, whole)
        statistics = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        loss = statistics.pop("loss").sum()
        seen = [statistics[name] for name in OF_ROWS if name in statistics]
        statistics["nonfinite"] = ~torch.isfinite(torch.stack(seen)).all(0)
        return Forward(loss, statistics, *self.gradients.whole())

    def _chunk(self, group: int, start: int, stop: int, rows: int) -> Result:
        """Run a chunk, whose gradient goes to its rows of the group's."""

        def padded(values: Tensor) -> Tensor:
            values = values[start:stop]
            missing = rows - len(values)
            return pad(values, (0, 0) * (values.dim() - 1) + (0, missing)) if missing else values

        student, *teacher = (logits[:rows] for logits in self.logits)
        self.heads[0].logits(padded(self.hidden).to(self.heads[0].dtype), student)
        events = event_logits = event_targets = None
        if isinstance(self.targets, HiddenTargets):
            self.heads[1].logits(padded(self.targets.hidden).to(self.heads[1].dtype), teacher[0])
            if self.request.loss.top_k:
                events = self._of_form(top_entries, min(self.request.loss.top_k, self.request.vocab), rows)(teacher[0])
                event_targets = _taken(teacher[0], events)
        elif self.targets is not None:
            events, event_targets = padded(self.targets.ids), padded(self.targets.log_probs)
        if events is not None:
            event_logits = _taken(student, events)
        per_token = {
            name: None if each is None else padded(each).to(self.dtype) for name, each in self.request.per_token.items()
        }
        sides = [logits[:, : self.width] for logits in (student, *teacher)]
        ids, of_teacher = padded(self.request.ids), sides[1] if teacher else None
        x = Chunk(sides[0], of_teacher, events, event_logits, event_targets, ids, **per_token)
        out = None if self.gradient is None else self.gradient[start - group : start - group + rows, : self.width]
        statistics, at_events, kept = self._of_form(chunk_loss, self.form, rows)(x, out)
        if out is not None and events is not None and at_events is not None:
            out.scatter_(1, events, at_events)
        if out is not None and kept is not None:
            out.scatter_(1, kept.columns, 0.0)
            kept = Kept(*(each[: stop - start] for each in kept))
        return Result({name: values[: stop - start] for name, values in statistics.items()}, None, kept)

    def _of_form(self, function: Callable[..., Any], form: Any, rows: int) -> Callable[..., Any]:
        """Return a function of a chunk with its first argument given; a CUDA device runs it compiled."""
        return compiled(function, form, rows, self.width) if self.compile else functools.partial(function, form)


def _taken(logits: Tensor, events: Tensor) -> Tensor:
    """Return the logits [C, k] of events, and leave the lowest logit in their places."""
    found = logits.gather(1, events)
    logits.scatter_(1, events, FLOOR)
    return found


def top_entries(k: int, logits: Tensor) -> Tensor:
    """Return the columns [C, k] of the largest logits of each row.

    They are in the k blocks with the largest maxima, which are cut into smaller blocks in turn. `topk` would read all
    logits many times.
    """
    values, columns = logits, torch.arange(logits.shape[1], device=logits.device).expand_as(logits)
    for size in TOP_BLOCKS:
        blocks = values.unflatten(1, (-1, size))
        if k < blocks.shape[1]:
            best = blocks.amax(-1).topk(k, -1, sorted=False).indices
            inside = (best.unsqueeze(-1) * size + torch.arange(size, device=best.device)).flatten(1)
            values, columns = values.gather(1, inside), columns.gather(1, inside)
    return columns
