"""One forward of the fused divergence on chosen tokens: all are scored, and rows that are likely to be kept are held meanwhile.

What is held is the logits' gradient, or with a score that reads no teacher the student's logits. So of a kept token only
the two gradient products (and the teacher's logits) remain when the choice is made. Kept tokens that were not held are made
a second time: the result does not depend on what was.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from opd.losses.choice import TokenChoice
from opd.losses.cuda.entropy_kernel import row_entropies
from opd.losses.cuda.host_copy import HostCopy
from opd.losses.cuda.logits_kernel import VOCAB_BLOCK, copy_rows, head_logits
from opd.losses.cuda.numbers_kernel import gradient_numbers
from opd.losses.cuda.plan import GRADIENT_BYTES, RowBytes, ScoredGroup, ScoredRowBytes, plan_scored, room_beside_logits
from opd.losses.cuda.row_kernel import (
    NUM_STATS,
    GradientRows,
    Logits,
    divergence_rows,
    gradient_report,
    new_gradient_stats,
)
from opd.losses.cuda.run import Attempt, Call, Forward, Inputs, Result, first_attempt, run
from opd.losses.divergence import DivergenceKind
from opd.losses.held import HeldTokens, positions
from opd.losses.padded_head import accumulate


class ChosenCall(NamedTuple):
    """A call, and which of its tokens it is to train on."""

    call: Call
    choice: TokenChoice
    scored: DivergenceKind | None
    """The divergence that tokens are chosen by; None: by the student's entropy alone."""


class ChosenResult(NamedTuple):
    """Everything one forward makes: `of_kept` of the kept tokens, but its gradient by the hidden states is of all T."""

    of_kept: Result
    kept: Tensor
    """[T] bool"""
    tokens: Tensor
    """[K] int64, the kept tokens' numbers."""
    entropy: Tensor
    """[T] the student's."""
    divergence: Tensor | None
    """[T] the scored one, nan where it is not finite."""


def run_chosen(inputs: Inputs, chosen: ChosenCall, *, need_hidden: bool, need_weight: bool) -> ChosenResult:
    """Run over all tokens, and where the kept ones' gradient is expected to be off by more than the limit over these again, stored otherwise."""
    form = ScoredByStudent if chosen.scored is None else ScoredByBoth
    forward = form(inputs, chosen, need_hidden=need_hidden, need_weight=need_weight)
    better = forward.run()
    tokens, kept, entropy, divergence = forward.tokens(), forward.kept, *forward.scores(0, forward.num_tokens)
    if better is None:
        return ChosenResult(forward.result(), kept, tokens, entropy, divergence)
    del forward  # its gradients, before the next ones are allocated
    some = Inputs(
        student_hidden=inputs.student_hidden[tokens],
        student_weight=inputs.student_weight,
        teacher_hidden=inputs.teacher_hidden[tokens],
        teacher_weight=inputs.teacher_weight,
        token_weights=inputs.token_weights[tokens],
        token_ids=None if inputs.token_ids is None else inputs.token_ids[tokens],
    )
    result = run(some, chosen.call, need_hidden=need_hidden, need_weight=need_weight, attempt=better)
    if result.grad_hidden is not None:
        everybodys = torch.zeros_like(inputs.student_hidden)
        result = result._replace(grad_hidden=everybodys.index_copy_(0, tokens, result.grad_hidden))
    return ChosenResult(result, kept, tokens, entropy, divergence)


class Scratch(NamedTuple):
    """Where logits lie between head product and row kernel."""

    storage: Tensor
    rows: int


def _floats(storage: Tensor, rows: int, width: int) -> Tensor:
    """[rows, width] float32 at the start of bytes."""
    return storage[: rows * width * 4].view(torch.float32).view(rows, width)


class ChosenForward(Forward, ABC):
    """One attempt over all tokens; what is held, and how it is completed, is the subclass's."""

    holds_gradients = False
    """What is held are gradient rows, so that `_complete` has nothing to do."""

    def __init__(self, inputs: Inputs, chosen: ChosenCall, *, need_hidden: bool, need_weight: bool) -> None:
        super().__init__(
            inputs, chosen.call, first_attempt(chosen.call), need_hidden=need_hidden, need_weight=need_weight
        )
        self.choice, self.scored_kind = chosen.choice, chosen.scored
        self.kept_parts: list[Tensor] = []
        self.num_kept = self.num_held = 0
        self.better: Attempt | None = None
        self.writes_weight_first = True
        self.beside = (0, 0)
        """Rows of logits, and gradient rows, that exist together where kept tokens' are made a second time."""
        self.num_blocks = -(-chosen.call.vocab // VOCAB_BLOCK)
        self.gradient_bytes = GRADIENT_BYTES * self.stride
        self.row = self._row_bytes()

    def run(self) -> Attempt | None:
        if self.num_tokens:
            self._run_groups(self._plan_groups())
        else:
            self._begin()
        if self.grad_weight is not None and self.better is None:
            (self.grad_weight if self.writes_weight_first else self.grad_weight[self.call.vocab :]).zero_()
        if self.grad_hidden is not None and self.report.num_nonfinite:  # a gradient of 0 times an infinite head
            tokens = self.tokens()
            finite = self.stats[tokens, 5] != 0
            self.grad_hidden.index_copy_(0, tokens, self.grad_hidden[tokens].where(finite.unsqueeze(1), 0.0))
        return self.better

    def result(self) -> Result:
        """Statistics [K, NUM_STATS] are the kept tokens'; no other token's were made."""
        tokens = self.tokens()
        stats, weights = self.stats[tokens], self.inputs.token_weights[tokens]
        grad_weight = None if self.grad_weight is None else self.grad_weight[: len(self.inputs.student_weight)]
        error = self.report.expected_error
        loss_sum = (stats[:, 0] * weights).sum()
        return Result(stats, loss_sum, self.grad_hidden, grad_weight, self.attempt.precision, error)

    @property
    def kept(self) -> Tensor:
        """[T] bool"""
        if not self.kept_parts:
            return torch.zeros(0, dtype=torch.bool, device=self.device)
        return self.kept_parts[0] if len(self.kept_parts) == 1 else torch.cat(self.kept_parts)

    def tokens(self) -> Tensor:
        """[K] int64, the kept tokens' numbers."""
        return positions(self.kept, self.num_kept)

    @abstractmethod
    def scores(self, start: int, stop: int) -> tuple[Tensor, Tensor | None]:
        """Entropy and, where it is scored, divergence of the tokens from `start` to `stop`."""

    # --- one group

    def _plan_groups(self) -> list[ScoredGroup]:
        edges = [0, *self.choice.ends] if self.choice.settles else [0, self.num_tokens]
        spans = itertools.pairwise(edges)
        parts = [(stop - start, self.choice.num_kept(start, stop)) for start, stop in spans]
        borrowed = 0 if self.grad_weight is None else self.grad_weight.nbytes
        return plan_scored(parts, self.row, workspace_bytes=self.call.workspace_bytes, weight_grad_bytes=borrowed)

    def _run_groups(self, groups: list[ScoredGroup]) -> None:
        num_kept = [self.choice.num_kept(group.start, group.stop) for group in groups]
        unheld = max(kept - group.capacity for kept, group in zip(num_kept, groups, strict=True))
        sizes = [
            group.capacity * self.gradient_bytes + (0 if group.in_weight_grad else group.logits_rows * self.row.scratch)
            for group in groups
        ]
        most_rows, most_held = max(g.logits_rows for g in groups), max(g.capacity for g in groups)
        if unheld:
            rows, capacity = self.beside = room_beside_logits(self.row, self.call.workspace_bytes, wanted=unheld)
            sizes.append(capacity * self.gradient_bytes + rows * self.row.scratch)
            most_rows, most_held = max(most_rows, rows), max(most_held, capacity)
        self.workspace = torch.empty(max(sizes), dtype=torch.uint8, device=self.device)
        self.block_max = torch.empty(2, most_rows, self.num_blocks, device=self.device)
        is_fp32 = self.attempt.precision == "fp32"
        self.gradient_stats = new_gradient_stats(most_held, self.call.vocab, is_fp32=is_fp32, device=self.device)
        self._allocate(most_held)
        for group, kept in zip(groups, num_kept, strict=True):
            self._run_group(group, kept)

    def _run_group(self, group: ScoredGroup, num_kept: int) -> None:
        chunks = list(self._chunks(group))
        scratch = self._scratch(group.capacity, group.logits_rows, group.in_weight_grad)
        ends = set(self.choice.ends)
        self.num_kept += num_kept
        if self.choice.settles and group.capacity >= num_kept and all(stop in ends for _, stop in chunks):
            self._run_settled(scratch, chunks)
        else:
            self._run_guessed(scratch, group, chunks, num_kept)

    def _run_settled(self, scratch: Scratch, chunks: list[tuple[int, int]]) -> None:
        """A group whose every chunk's choice is final: what is held is what is kept, in its order."""
        parts: list[Tensor] = []
        num_held = 0
        for start, stop in chunks:
            logits = self._score(scratch, slice(start, stop))
            entropy, divergence = self.scores(start, stop)
            kept = self.choice.kept(start, stop, entropy=entropy, divergence=divergence)
            num_kept = self.choice.num_kept(start, stop)
            parts.append(kept)
            if self.better is None and num_kept:
                slots = torch.where(kept, kept.cumsum(0) + (num_held - 1), -1).int()
                self._hold(logits, slots, slice(start, stop))
            num_held += num_kept
        self.kept_parts += parts
        if self.better is None and num_held:
            tokens = positions(torch.cat(parts), num_held)
            self._multiply(scratch, tokens + chunks[0][0])

    def _run_guessed(self, scratch: Scratch, group: ScoredGroup, chunks: list[tuple[int, int]], num_kept: int) -> None:
        """A group whose choice is final when the last chunk is scored: rows that are likely to be kept are held till then."""
        start, holds = group.start, bool(group.capacity) and self.better is None
        held: HeldTokens | None = None
        for chunk_start, stop in chunks:
            logits = self._score(scratch, slice(chunk_start, stop))
            entropy, divergence = self.scores(start, stop)
            if stop == group.stop:
                kept = self.choice.kept(start, stop, entropy=entropy, divergence=divergence)
                self.kept_parts.append(kept)
            if not holds:
                continue
            if stop == group.stop and group.capacity == num_kept:
                wanted = kept
            else:
                wanted = self.choice.likely(start, stop, group.capacity, entropy=entropy, divergence=divergence)
            held = held or HeldTokens(group.capacity, group.stop - start, self.device)
            slots = held.update(wanted, chunk_start - start)
            self._hold(logits, slots, slice(chunk_start, stop))
        if held is None:
            return
        tokens, num_held = held.token_of_slot, held.num_held()
        if group.capacity == num_kept and self.holds_gradients:
            if self._multiply(scratch, tokens.clamp(min=0) + start, num_held):
                return
            count = self.num_held
        else:
            count = int(HostCopy(num_held).read())
        missing = held.missing(kept, num_kept - count)
        holes = held.free_slots(group.capacity - count)
        self._make(scratch, missing[: len(holes)] + start, holes)
        held.put(holes, missing[: len(holes)])
        self._multiply(scratch, held.token_of_slot + start)
        self._train_unheld(missing[len(holes) :] + start)

    def _train_unheld(self, tokens: Tensor) -> None:
        """Kept tokens that there was no room to hold: their rows, made and multiplied as many at a time as there is room for."""
        if not len(tokens):
            return
        rows, capacity = self.beside
        scratch = self._scratch(capacity, rows, False)
        for part in tokens.split(capacity):
            if self.better is None:
                self._make(scratch, part, torch.arange(len(part), device=self.device))
                self._multiply(scratch, part)

    def _chunks(self, group: ScoredGroup) -> Iterator[tuple[int, int]]:
        """(start, stop) of each chunk: of whole rollouts where these fill at least half of one, whose choice is then the final one."""
        start = group.start
        while start < group.stop:
            limit = min(start + group.logits_rows, group.stop)
            ends = [end for end in self.choice.ends if start + group.logits_rows // 2 <= end <= limit]
            stop = limit if limit == group.stop or not ends else ends[-1]
            yield start, stop
            start = stop

    def _make(self, scratch: Scratch, tokens: Tensor, slots: Tensor) -> None:
        """Hold tokens in slots that are not scored now; both [n] int64."""
        if not len(tokens):
            return
        for some, places in zip(tokens.split(scratch.rows), slots.int().split(scratch.rows), strict=True):
            self._hold(self._logits(scratch, some), places, some)

    def _multiply(self, scratch: Scratch, tokens: Tensor, num_held: Tensor | None = None) -> bool:
        """Both gradient products of the rows in the first slots; `tokens` [n] are those that they are of.

        Args:
            num_held: scalar on the device, how many of the slots are in use. The first product is queued before the host knows; are
                there less than n, nothing else happens, `self.num_held` is what was read, and the result is False.
        """
        self._complete(scratch, tokens)
        gradient, width = self._gradient(len(tokens)), self.head.width
        call, weights, stats = self.call, self.weights[tokens], self.stats[tokens]
        rows = GradientRows(gradient, weights, self.attempt.gradient_scale, self.gradient_stats[: len(tokens)])
        numbers = gradient_numbers(rows, stats, call.kind, beta=call.beta, temperature=call.temperature)
        sent = HostCopy(torch.stack([*self.numbers, numbers]))
        sent_held = None if num_held is None else HostCopy(num_held)
        products: Iterator[tuple[Tensor, Tensor]] = iter(())
        if self.grad_hidden is not None:
            most = max(1, scratch.storage.nbytes // (4 * width))
            products = (
                (places, self.head.hidden_gradient(part, _floats(scratch.storage, len(part), width)))
                for part, places in zip(gradient.split(most), tokens.split(most), strict=True)
            )
        first = next(products, None)
        if sent_held is not None:
            self.num_held = int(sent_held.read())
            if self.num_held < len(tokens):
                return False
        unit = self.weight_unit / self.attempt.gradient_scale
        while first is not None and self.grad_hidden is not None:
            places, product = first
            self.grad_hidden.index_copy_(0, places, product.mul_(unit).to(self.grad_hidden.dtype))
            first = next(products, None)
        self.numbers.append(numbers)
        self.report = gradient_report(sent.read(), self.inputs.student_weight.dtype)
        self.better = self._better_attempt()
        if self.better is not None or self.grad_weight is None:
            return True
        hidden = self.inputs.student_hidden[tokens].to(self.inputs.student_weight.dtype)
        if self.report.num_nonfinite:  # the row's gradient is 0, but 0 * nan would reach every row of the head's
            hidden = hidden.masked_fill((stats[:, 5] == 0).unsqueeze(1), 0.0)
        beta = 0 if self.writes_weight_first else 1
        accumulate(self.grad_weight[: self.stride], gradient.T, hidden, beta=beta, alpha=unit)
        self.writes_weight_first = False
        return True

    # --- storage

    def _row_bytes(self) -> ScoredRowBytes:
        """What a row needs while it is held, and while its logits exist."""
        row = RowBytes.of(self.stride, self.num_blocks, self.attempt.precision)
        return ScoredRowBytes(held=row.gradient, scratch=row.scratch, side=row.side)

    def _allocate(self, most_held: int) -> None:
        """What the subclass needs beside the workspace, for so many held rows."""

    def _scratch(self, capacity: int, rows: int, borrows: bool) -> Scratch:
        if borrows and self.grad_weight is not None:
            return Scratch(self.grad_weight.view(-1).view(torch.uint8), rows)
        return Scratch(self.workspace[capacity * self.gradient_bytes :], rows)

    def _gradient(self, num_rows: int) -> Tensor:
        """[num_rows, stride] of the workspace, the first slots."""
        dtype = self.inputs.student_weight.dtype
        return self.workspace[: num_rows * self.gradient_bytes].view(dtype).view(num_rows, self.stride)

    def workspace_rows(self) -> Tensor:
        """[slots, vocab]; only slots that the group has are written."""
        return self._gradient(self.workspace.nbytes // self.gradient_bytes)[:, : self.call.vocab]

    def _side(self, scratch: Scratch, side: int, num_rows: int) -> Logits:
        """Where one side's logits of a chunk go."""
        fp16 = self.attempt.precision == "fp16"
        dtype, entry_bytes = (torch.float16, 2) if fp16 else (torch.float32, 4)
        size, offset = num_rows * self.stride * entry_bytes, side * scratch.rows * self.stride * entry_bytes
        values = scratch.storage[offset : offset + size].view(dtype).view(num_rows, self.stride)
        return Logits(values[:, : self.call.vocab], self.block_max[side, :num_rows] if fp16 else None)

    def _student(self, scratch: Scratch, tokens: slice | Tensor) -> Logits:
        logits = self._head(scratch, 0, self.inputs.student_hidden[tokens], self.inputs.student_weight)
        self._begin()
        return logits

    def _teacher(self, scratch: Scratch, side: int, tokens: slice | Tensor) -> Logits:
        return self._head(scratch, side, self.inputs.teacher_hidden[tokens], self.inputs.teacher_weight)

    def _begin(self) -> None:
        """Everything small that no product waits for is queued behind the first one: the device is idle until that is."""
        if not self.has_begun and self.grad_hidden is not None:
            self.grad_hidden.zero_()
        super()._begin()
        self.head  # noqa: B018  made here and kept

    def _ids(self, tokens: slice | Tensor) -> Tensor | None:
        return None if self.inputs.token_ids is None else self.inputs.token_ids[tokens]

    def _head(self, scratch: Scratch, side: int, hidden: Tensor, weight: Tensor) -> Logits:
        logits = self._side(scratch, side, len(hidden))
        head_logits(hidden.to(weight.dtype).contiguous(), weight[: self.call.vocab], *logits)
        return logits

    # --- the subclass's

    @abstractmethod
    def _score(self, scratch: Scratch, tokens: slice) -> tuple[Logits, ...]:
        """Logits of a chunk, and its scores."""

    @abstractmethod
    def _logits(self, scratch: Scratch, tokens: Tensor) -> tuple[Logits, ...]:
        """What `_score` returns, without the scores."""

    @abstractmethod
    def _hold(self, logits: tuple[Logits, ...], slots: Tensor, tokens: slice | Tensor) -> None:
        """Keep each row whose slot [n] int32 is not negative; `tokens` (n of them) are the rows'."""

    def _complete(self, scratch: Scratch, tokens: Tensor) -> None:
        """Make of what is held the gradient rows."""


class ScoredByBoth(ChosenForward):
    """Scores need both models' logits: gradient rows are held."""

    holds_gradients = True

    def __init__(self, inputs: Inputs, chosen: ChosenCall, *, need_hidden: bool, need_weight: bool) -> None:
        super().__init__(inputs, chosen, need_hidden=need_hidden, need_weight=need_weight)
        self.scored = torch.empty(self.num_tokens, NUM_STATS, device=self.device)

    def scores(self, start: int, stop: int) -> tuple[Tensor, Tensor | None]:
        divergence, entropy, *_, finite = self.scored[start:stop].T
        return entropy, divergence.masked_fill(finite == 0, torch.nan)

    def _score(self, scratch: Scratch, tokens: slice) -> tuple[Logits, ...]:
        logits = self._student(scratch, tokens), self._teacher(scratch, 1, tokens)
        call, token_ids = self.call, self._ids(tokens)
        kind, stats = self.scored_kind, self.scored[tokens]
        assert kind is not None
        divergence_rows(
            *logits, kind, beta=call.beta, temperature=call.temperature, token_ids=token_ids, stats=stats, gradient=None
        )
        return logits

    def _logits(self, scratch: Scratch, tokens: Tensor) -> tuple[Logits, ...]:
        return self._student(scratch, tokens), self._teacher(scratch, 1, tokens)

    def _hold(self, logits: tuple[Logits, ...], slots: Tensor, tokens: slice | Tensor) -> None:
        call, stats = self.call, self.stats[tokens]
        scale = self.attempt.gradient_scale
        gradient = GradientRows(self.workspace_rows(), self.weights[tokens], scale, self.gradient_stats, slots)
        divergence_rows(
            logits[0],
            logits[1],
            call.kind,
            beta=call.beta,
            temperature=call.temperature,
            token_ids=self._ids(tokens),
            stats=stats,
            gradient=gradient,
        )
        if isinstance(tokens, Tensor):  # else it is a view
            self.stats[tokens] = stats


class ScoredByStudent(ChosenForward):
    """Scores need the student alone: its fp16 logits are held, and the teacher's are made of the kept tokens only."""

    def __init__(self, inputs: Inputs, chosen: ChosenCall, *, need_hidden: bool, need_weight: bool) -> None:
        super().__init__(inputs, chosen, need_hidden=need_hidden, need_weight=need_weight)
        self.entropy = torch.empty(self.num_tokens, device=self.device)

    def scores(self, start: int, stop: int) -> tuple[Tensor, Tensor | None]:
        return self.entropy[start:stop], None

    def _row_bytes(self) -> ScoredRowBytes:
        """A held row's block maxima stay too; logits of one side exist at a time."""
        return ScoredRowBytes(
            held=self.gradient_bytes + 4 * self.num_blocks, scratch=2 * self.stride, side=4 * self.num_blocks
        )

    def _allocate(self, most_held: int) -> None:
        self.held_max = torch.empty(most_held, self.num_blocks, device=self.device)

    def _score(self, scratch: Scratch, tokens: slice) -> tuple[Logits, ...]:
        student = self._student(scratch, tokens)
        self.entropy[tokens] = row_entropies(student, self.call.temperature)
        return (student,)

    def _logits(self, scratch: Scratch, tokens: Tensor) -> tuple[Logits, ...]:
        return (self._student(scratch, tokens),)

    def _hold(self, logits: tuple[Logits, ...], slots: Tensor, tokens: slice | Tensor) -> None:
        (student,) = logits
        assert student.block_max is not None
        held = self.workspace_rows().view(torch.float16)
        copy_rows(student.values, held, slots)
        copy_rows(student.block_max, self.held_max, slots)

    def _complete(self, scratch: Scratch, tokens: Tensor) -> None:
        call = self.call
        held = self.workspace_rows()
        for start in range(0, len(tokens), scratch.rows):
            some = tokens[start : start + scratch.rows]
            rows, stats = slice(start, start + len(some)), self.stats[some]
            gradient = GradientRows(
                held[rows], self.weights[some], self.attempt.gradient_scale, self.gradient_stats[rows]
            )
            divergence_rows(
                Logits(held[rows].view(torch.float16), self.held_max[rows]),
                self._teacher(scratch, 0, some),
                call.kind,
                beta=call.beta,
                temperature=call.temperature,
                token_ids=self._ids(some),
                stats=stats,
                gradient=gradient,
            )
            self.stats[some] = stats
