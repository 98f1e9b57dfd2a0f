"""Phase 1 of an update: each teacher reads the rows that are its own, and leaves hidden states for the student's head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from tensordict import TensorDict
from torch import Tensor, distributed
from verl.utils import tensordict_utils as tu

from opd.batch.rows import LossPositions, RolloutRows
from opd.update.attention import Slice
from opd.update.engines import TeacherEngine
from opd.update.head import CollectTask, Reference
from opd.update.head_engine import READ
from opd.update.losses import trained_positions
from opd.update.teacher_cache import Fetch, HiddenCache


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
        counts = torch.tensor([self._counts[row] for row in rows])
        return torch.arange(counts.shape[1]).repeat(len(rows)).repeat_interleave(counts.flatten())

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
    heads: dict[int, Tensor] = field(default_factory=dict)

    def keep(self, row: int, kept: Tensor, rank: int | None) -> None:
        """Keep only some of a row's trained tokens [n]; `rank` is this process's among those that share the row, if any do."""
        self.cache.keep(row, kept if rank is None else self.holders.keep(row, kept)[rank])

    def for_head(
        self, numbers: list[int], rows: RolloutRows, found: LossPositions, own: Slice | None
    ) -> tuple[Reference, ...]:
        """Return what was read of a micro-batch.

        Args:
            numbers, rows, found: its rows, and their trained tokens' positions. own: this rank's slice of them.
        """
        if self.of_rows is None:
            hidden: Fetch = self.cache.fetch(numbers)
            if own is not None:
                hidden = Regrouped(hidden, self.holders.of(numbers), own.holders(found.flat_index), own)
            return (Reference(hidden, self.heads[0]),)
        assert own is None  # a rule refuses several teachers with ranks that share sequences
        teachers = torch.tensor([self.of_rows[row] for row in numbers])
        references = []
        for number in teachers.unique().tolist():
            places = (teachers == number).nonzero()[:, 0].tolist()
            hidden, tokens = self.cache.fetch([numbers[place] for place in places]), teachers[found.row] == number
            own_tokens = tokens.nonzero()[:, 0]
            references.append(Reference(hidden, self.heads[number], self.names[number], tuple(places), own_tokens))
        return tuple(references)


def read_teachers(
    data: TensorDict, rows: RolloutRows, *, teachers: Sequence[TeacherEngine], states: TeacherStates, valid_vocab: int
) -> None:
    """Fill `states` with each teacher's hidden states and head (a collective call); no teacher reads ids from `valid_vocab` on."""
    owners = [0] * len(data) if states.of_rows is None else states.of_rows
    data = data.select(*READ)
    ids = data["input_ids"]
    # All trained tokens are before the first that a teacher lacks.
    readable = ids.values().masked_fill(ids.values() >= valid_vocab, 0)
    data["input_ids"] = torch.nested.nested_tensor_from_jagged(readable, ids.offsets())
    for number, teacher in enumerate(teachers):
        some = data if len(teachers) == 1 else _rows_of(data, [owner == number for owner in owners], teacher)
        if some is None:
            continue
        _read(some, rows, number, owners, teacher, states)
        states.heads[number] = teacher.head_weight()
        teacher.release()


def _rows_of(data: TensorDict, is_own: list[bool], teacher: TeacherEngine) -> TensorDict | None:
    """Return a teacher's own rows, and short others until every rank has equally many in whole micro-batches.

    None means that no rank has a row of its own.
    """
    num_rows = torch.tensor(sum(is_own), device=teacher.device)
    distributed.all_reduce(num_rows, distributed.ReduceOp.MAX)
    if not num_rows:
        return None
    size = teacher.rows_at_once
    order = (~torch.tensor(is_own) * data["input_ids"].offsets().diff().cpu()).argsort(stable=True)
    some: TensorDict = tu.index_select_tensor_dict(data, order[: -(-int(num_rows) // size) * size])
    return some


def _read(
    data: TensorDict,
    rows: RolloutRows,
    number: int,
    owners: Sequence[int],
    teacher: TeacherEngine,
    states: TeacherStates,
) -> None:
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

    for micro_batch, _, hidden in teacher.read(data, task_of):
        for row, part in zip(micro_batch["opd_row"].tolist(), hidden.split(counts), strict=True):
            if number == owners[row]:
                states.cache.put(row, part)
