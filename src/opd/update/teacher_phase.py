"""Phase 1 of an update: each teacher reads the rows that are its own, and leaves hidden states for the student's head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, distributed
from verl.utils import tensordict_utils as tu
from verl.workers.engine_workers import TrainingWorker

from opd.batch import LossPositions, RolloutRows
from opd.update.engines import TeacherEngine
from opd.update.head import CollectTask
from opd.update.head_loss import trained_positions
from opd.update.loss_task import Reference
from opd.update.reading import READ, Reading
from opd.update.teacher_cache import Fetch, HiddenCache
from opd.update.ulysses import Slice
from opd.update.unshared_tokens import readable_ids


class Holders:
    """The rank of the group that computed the hidden state of each trained token, known on every rank."""

    def __init__(self) -> None:
        self._counts: dict[int, list[int]] = {}

    def note(self, rows: Sequence[int], found: LossPositions, piece: Slice) -> list[int]:
        """Note the ranks of a micro-batch's trained tokens; return the number of each row's tokens on this rank."""
        place = found.row * piece.size + piece.holders(found.flat_index)
        counts = torch.bincount(place, minlength=len(rows) * piece.size).view(len(rows), piece.size).tolist()
        self._counts.update(zip(rows, counts, strict=True))
        return [of_rank[piece.rank] for of_rank in counts]

    def of(self, rows: Sequence[int]) -> Tensor:
        """Return [N] int64 (host), the rank that holds each trained token of these rows, in their order."""
        ranks = [torch.arange(len(self._counts[row])) for row in rows]
        counts = [torch.tensor(self._counts[row]) for row in rows]
        return torch.cat([rank.repeat_interleave(count) for rank, count in zip(ranks, counts, strict=True)])

    def keep(self, row: int, kept: Tensor) -> tuple[Tensor, ...]:
        """Keep only some of a row's trained tokens [n]; return `kept` of each rank's tokens."""
        parts: tuple[Tensor, ...] = kept.split(self._counts[row])
        self._counts[row] = [int(part.sum()) for part in parts]
        return parts


class Regrouped(Fetch):
    """Hidden states on their way from the ranks `held` [N] to the ranks `needed` [N]; `ready` is a collective call."""

    def __init__(self, cached: Fetch, held: Tensor, needed: Tensor, piece: Slice) -> None:
        self._cached, self._piece = cached, piece
        self._is_moved = not torch.equal(held, needed)  # the same answer on every rank
        self._sent = torch.bincount(needed[held == piece.rank], minlength=piece.size).tolist()
        wanted = held[needed == piece.rank]
        self._received = torch.bincount(wanted, minlength=piece.size).tolist()
        self._order = torch.argsort(wanted, stable=True)

    def ready(self) -> Tensor:
        """Return [N_own, d] in the order of this rank's tokens."""
        cached = self._cached.ready()
        if not self._is_moved:
            return cached
        received = cached.new_empty(len(self._order), cached.shape[1])
        # A rank's tokens ascend, and so do the ranks that read them: what it has is in the order of its receivers.
        distributed.all_to_all_single(received, cached, self._received, self._sent, group=self._piece.group)
        ordered = torch.empty_like(received)
        ordered[self._order.to(received.device)] = received
        return ordered


@dataclass(frozen=True, kw_only=True)
class TeacherStates:
    """Hidden states and heads that the teachers leave of a step on this rank.

    Args:
        names: of several teachers, in the order of their numbers.
        of_rows: the number of each row's teacher. None means that one teacher reads all rows.
        holders: where ranks share sequences, which rank computed what.
        heads: [V_T, d_T] of each teacher that read a row, by its number.
    """

    cache: HiddenCache
    names: Sequence[str] = ()
    of_rows: Sequence[int] | None = None
    holders: Holders = field(default_factory=Holders)
    heads: dict[int, torch.Tensor] = field(default_factory=dict)

    def keep(self, row: int, kept: torch.Tensor, rank: int | None) -> None:
        """Keep only some of a row's trained tokens [n]; `rank` is this process's among those that share the row, if any do."""
        self.cache.keep(row, kept if rank is None else self.holders.keep(row, kept)[rank])

    def of_row(self, row: int) -> int:
        """Return the number of the teacher that reads a row."""
        return 0 if self.of_rows is None else self.of_rows[row]

    def for_head(
        self, numbers: list[int], counts: torch.Tensor, flat_index: torch.Tensor, own: Slice | None
    ) -> dict[str, Any]:
        """Return the fields of a micro-batch's `LossTask` that hold what was read.

        Args:
            numbers, counts: [B] of the micro-batch's rows, and their trained tokens. flat_index: [N] their places.
            own: this rank's slice. Several teachers have none.
        """
        if self.of_rows is not None:
            assert own is None  # a rule refuses several teachers with ranks that share sequences
            return {"parts": tuple(self._parts(self.of_rows, numbers, counts))}
        hidden: Fetch = self.cache.fetch(numbers)
        if own is not None:
            hidden = Regrouped(hidden, self.holders.of(numbers), own.holders(flat_index), own)
        return {"reference": Reference(hidden=hidden, weight=self.heads[0])}

    def _parts(self, of_rows: Sequence[int], numbers: list[int], counts: torch.Tensor) -> Iterator[Reference]:
        """Yield the part of each teacher that has a row in the micro-batch."""
        own = torch.tensor([of_rows[row] for row in numbers])
        of_token = own.repeat_interleave(counts)
        for number in own.unique().tolist():
            places = (own == number).nonzero()[:, 0].tolist()
            yield Reference(
                name=self.names[number],
                rows=tuple(places),
                tokens=(of_token == number).nonzero()[:, 0],
                hidden=self.cache.fetch([numbers[place] for place in places]),
                weight=self.heads[number],
            )


def read_teachers(
    data: TensorDict,
    rows: RolloutRows,
    *,
    teachers: Sequence[TrainingWorker],
    reading: Reading,
    states: TeacherStates,
    valid_vocab: int,
) -> None:
    """Fill `states` with each teacher's hidden states and head (a collective call); no teacher reads ids from `valid_vocab` on."""
    reads = [
        (number, some)
        for number, teacher in enumerate(teachers)
        if (some := _rows_of(data, number, teacher, reading, states)) is not None
    ]
    for number, some in reads:
        engine: TeacherEngine = teachers[number].engine
        inputs = reading.inputs(some, teachers[number])
        inputs["input_ids"] = readable_ids(inputs["input_ids"], valid_vocab)
        with engine.on_device():
            _read(inputs, rows, number, engine, states)
            states.heads[number] = engine.head_weight()


def _rows_of(
    data: TensorDict, number: int, teacher: TrainingWorker, reading: Reading, states: TeacherStates
) -> TensorDict | None:
    """Return the rows that a teacher reads: its own, and short others until every rank has equally many in whole micro-batches.

    None means that no rank has a row of its own.
    """
    if states.of_rows is None:
        return data
    is_other = torch.tensor([number != states.of_row(row) for row in range(len(data))])
    num_rows = (~is_other).sum().to(reading.device)
    distributed.all_reduce(num_rows, distributed.ReduceOp.MAX)
    if not num_rows:
        return None
    size = reading.rows_at_once(teacher)
    order = (is_other * data["input_ids"].offsets().diff().cpu()).argsort(stable=True)
    return tu.index_select_tensor_dict(data.select(*READ), order[: -(-int(num_rows) // size) * size])


def _read(inputs: TensorDict, rows: RolloutRows, number: int, engine: TeacherEngine, states: TeacherStates) -> None:
    """Let one teacher read; hidden states of other teachers' rows are dropped."""
    counts: list[int] = []

    def task_of(micro_batch: TensorDict, starts: Tensor, own: Slice | None) -> CollectTask:
        numbers = micro_batch["opd_row"].tolist()
        mine, found = trained_positions(rows, numbers, starts)
        if own is None:
            counts[:] = mine.num_trained_tokens.tolist()
            return CollectTask(found.flat_index)
        counts[:] = states.holders.note(numbers, found, own)
        return CollectTask(own.select(found)[0].flat_index)

    for micro_batch, _, hidden in engine.read(inputs, task_of):
        for row, part in zip(micro_batch["opd_row"].tolist(), hidden.split(counts), strict=True):
            if number == states.of_row(row):
                states.cache.put(row, part)
