"""Phase 1 of an update: each teacher reads the rows that are its own, and leaves hidden states for the student's head.

A teacher may be the student as it was some steps ago: such a one gets the student's weights, and a resumed run loads them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tensordict import TensorDict
from torch import Tensor, distributed
from verl.utils import tensordict_utils as tu

from opd.batch.rows import LossPositions, RolloutRows, loss_positions
from opd.experiment.sections import Teacher
from opd.runs.manifest import step_of
from opd.update.attention import Slice
from opd.update.engines import StudentEngine, TeacherEngine
from opd.update.head import CollectTask, Reference
from opd.update.head_engine import READ
from opd.update.teacher_cache import Fetch, HiddenCache


def regrouped(cached: Fetch, held: Tensor, needed: Tensor, piece: Slice) -> Fetch:
    """Return hidden states [N_own, d] on their way from the ranks `held` [N] to the ranks `needed` [N]; its call is collective."""
    if torch.equal(held, needed):  # the same answer on every rank
        return cached
    wanted = held[needed == piece.rank]
    sent = torch.bincount(needed[held == piece.rank], minlength=piece.size).tolist()
    received, order = torch.bincount(wanted, minlength=piece.size).tolist(), torch.argsort(wanted, stable=True)

    def ready() -> Tensor:
        mine = cached()
        found = mine.new_empty(len(order), mine.shape[1])
        # A rank's tokens ascend, and so do the ranks that read them: what it has is in the order of its receivers.
        distributed.all_to_all_single(found, mine, received, sent, group=piece.group)
        return torch.empty_like(found).index_copy_(0, order.to(found.device), found)

    return ready


@dataclass(frozen=True)
class TeacherStates:
    """Hidden states and heads [V_T, d_T] that the teachers, by their numbers, leave of a step on this rank.

    Args:
        of_rows: the number of each row's teacher. None means that one teacher reads all rows.
        holders: where ranks share sequences, the rank that computed each trained token of a row, known on every rank.
    """

    cache: HiddenCache
    names: Sequence[str] = ()
    of_rows: Sequence[int] | None = None
    holders: dict[int, Tensor] = field(default_factory=dict)
    heads: dict[int, Tensor] = field(default_factory=dict)

    def keep(self, row: int, kept: Tensor, rank: int | None) -> None:
        """Keep only some of a row's trained tokens [n]; `rank` is this process's among those that share the row, if any do."""
        if self.of_rows is not None and self.of_rows[row] not in self.heads:
            return  # a served teacher leaves nothing here
        if rank is None:
            self.cache.keep(row, kept)
        else:
            self.cache.keep(row, kept[self.holders[row] == rank])
            self.holders[row] = self.holders[row][kept]

    def for_head(self, numbers: list[int], found: LossPositions, own: Slice | None) -> tuple[Reference, ...]:
        """Return what was read of a micro-batch's rows, by their numbers and their trained tokens' positions."""
        if self.of_rows is None:
            hidden = self.cache.fetch(numbers)
            if own is not None:
                held = torch.cat([self.holders[number] for number in numbers])
                hidden = regrouped(hidden, held, own.holders(found.flat_index), own)
            return (Reference(hidden, self.heads[0]),)
        assert own is None  # a rule refuses several teachers with ranks that share sequences
        teachers = torch.tensor([self.of_rows[row] for row in numbers])
        references = []
        for number in teachers.unique().tolist():
            rows = (teachers == number).nonzero()[:, 0].tolist()
            tokens = (teachers[found.row] == number).nonzero()[:, 0]
            head = self.heads.get(number)  # of a served teacher there is none
            states = None if head is None else self.cache.fetch([numbers[row] for row in rows])
            references.append(Reference(states, head, self.names[number], tuple(rows), tokens))
        return tuple(references)


def read_teachers(
    data: TensorDict, rows: RolloutRows, *, teachers: Sequence[TeacherEngine], states: TeacherStates, valid_vocab: int
) -> None:
    """Fill `states` with each teacher's hidden states and head (a collective call); no teacher reads ids from `valid_vocab` on."""
    data = data.select(*READ)
    ids = data["input_ids"]
    # All trained tokens are before the first that a teacher lacks.
    readable = ids.values().masked_fill(ids.values() >= valid_vocab, 0)
    data["input_ids"] = torch.nested.nested_tensor_from_jagged(readable, ids.offsets())
    for number, teacher in enumerate(teachers):
        is_own = [states.of_rows is None or states.of_rows[row] == number for row in range(len(data))]
        if (some := data if states.of_rows is None else _rows_of(data, is_own, teacher)) is not None:
            _read(some, rows, is_own, teacher, states)
            states.heads[number] = teacher.head_weight()
            teacher.release()


def _rows_of(data: TensorDict, is_own: list[bool], teacher: TeacherEngine) -> TensorDict | None:
    """Return a teacher's own rows, and short others until every rank has equally many. None means that no rank has its rows."""
    num_rows = torch.tensor(sum(is_own), device=teacher.device)
    distributed.all_reduce(num_rows, distributed.ReduceOp.MAX)
    if not num_rows:
        return None
    order = (~torch.tensor(is_own) * data["input_ids"].offsets().diff().cpu()).argsort(stable=True)
    some: TensorDict = tu.index_select_tensor_dict(data, order[: int(num_rows)])
    return some


def _read(
    data: TensorDict, rows: RolloutRows, is_own: list[bool], teacher: TeacherEngine, states: TeacherStates
) -> None:
    """Let one teacher read; hidden states of other teachers' rows are dropped."""
    counts: list[int] = []

    def task_of(micro_batch: TensorDict, starts: Tensor, own: Slice | None) -> CollectTask:
        numbers = micro_batch["opd_row"].tolist()
        found = loss_positions(rows.select(numbers), row_starts=starts)
        of_rows = found.row.bincount(minlength=len(numbers)).tolist()
        if own is not None:
            holders = own.holders(found.flat_index).split(of_rows)
            states.holders.update(zip(numbers, holders, strict=True))
            found, of_rows = own.select(found)[0], [int((ranks == own.rank).sum()) for ranks in holders]
        counts[:] = of_rows
        return CollectTask(found.flat_index)

    for micro_batch, _, hidden in teacher.read(data, task_of):
        for row, part in zip(micro_batch["opd_row"].tolist(), hidden.split(counts), strict=True):
            if is_own[row]:
                states.cache.put(row, part)


def teachers_step(step: int, every: int) -> int:
    """Return the step after which the student had the weights that a teacher has in `step`; 0 means the start, or never."""
    return (step - 1) // every * every if every else 0


def refresh_metrics(teachers: Mapping[str, Teacher], step: int) -> dict[str, float]:
    """Return `opd/teacher_step`, or `opd/teacher/NAME/step` of several, of the teachers that are refreshed."""
    of = {key: teachers_step(step, teacher.refresh_every) for key, teacher in teachers.items() if teacher.refresh_every}
    names = {key: key.replace("teachers.", "teacher/") + "/step" for key in of} | {"teacher": "teacher_step"}
    return {f"opd/{names[key]}": float(found) for key, found in of.items()}


@dataclass(frozen=True, kw_only=True)
class SelfTeachers:
    """The teachers of a run by their keys, each with its `refresh_every`."""

    engines: Mapping[str, TeacherEngine]
    every: Mapping[str, int]

    def before(self, step: int, student: StudentEngine) -> None:
        """Refresh the teachers that are due before a step; 0 means an unknown step."""
        for key, engine in self.engines.items():
            if step > 1 and teachers_step(step, self.every[key]) == step - 1:
                engine.load_local_weights(student.local_weights())

    def save(self, folder: Path, *, step: int) -> None:
        """Save this rank's part of the teachers that are neither the start nor the student of this checkpoint."""
        if kept := self._needed(step):
            parts = {key: self.engines[key].local_weights() for key in kept}
            on_host = {key: {name: part.cpu() for name, part in of_one.items()} for key, of_one in parts.items()}
            torch.save(on_host, folder / _own_file())

    def load(self, folder: Path) -> None:
        """Load the teachers that a checkpoint's folder `actor` has."""
        if needed := self._needed(step_of(folder.parent.name) or 0):
            weights = torch.load(folder / _own_file(), map_location="cpu", weights_only=True, mmap=True)
            for key in needed:
                self.engines[key].load_local_weights(weights[key])

    def _needed(self, step: int) -> list[str]:
        """Return the keys of the teachers that after `step` are neither the start nor the student."""
        return [key for key, every in self.every.items() if 0 < teachers_step(step + 1, every) < step]


def _own_file() -> str:
    """Return the name of this rank's file, like verl's shards, so that each rank uploads and fetches its own."""
    return f"teacher_world_size_{distributed.get_world_size()}_rank_{distributed.get_rank()}.pt"
