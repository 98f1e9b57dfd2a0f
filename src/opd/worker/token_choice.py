"""Passes of the student over a step before it trains: scores of all tokens and the choice among them, and old log-probabilities."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, distributed
from torch.distributed import ProcessGroup
from verl.workers.engine_workers import TrainingWorker

from opd.batch import LossPositions, RolloutRows
from opd.config.algorithm import TokenImportance
from opd.importance import choose_tokens, selection_metrics
from opd.importance.stages import within_horizon
from opd.losses import Output
from opd.worker.engines import StudentEngine, TeacherEngine
from opd.worker.head import HeadTask
from opd.worker.loss_task import LossTask
from opd.worker.reading import Reading, trained_positions
from opd.worker.student_task import StudentTasks
from opd.worker.token_view import TokenView
from opd.worker.ulysses import Slice


class TokenScores:
    """Entropy and divergence of each row's trained tokens, row after row, whatever the order in which they come.

    Args:
        counts: [B] trained tokens of each row.
        group: the ranks that share each sequence; they then all know the scores of all its tokens. None: no others.
    """

    def __init__(self, counts: Sequence[int], group: ProcessGroup | None) -> None:
        self._counts, self._group = list(counts), group
        self._rows: dict[str, dict[int, Tensor]] = {}

    def take(self, rows: Sequence[int], own: Tensor | None, **scores: Tensor) -> None:
        """The scores of a micro-batch.

        Args:
            rows: its rows' numbers.
            own: [M] bool, which of its trained tokens the scores are of (a collective call); None: all.
            scores: by name, [N] each.
        """
        counts = [self._counts[row] for row in rows]
        for name, values in scores.items():
            if own is not None:
                everybodys = values.new_zeros(len(own))
                everybodys[own] = values
                distributed.all_reduce(everybodys, group=self._group)
                values = everybodys
            self._rows.setdefault(name, {}).update(zip(rows, values.split(counts), strict=True))

    def by_name(self) -> dict[str, Tensor]:
        """Each score of all rows' trained tokens, [T] in the order of the rows."""
        return {name: torch.cat([rows[i] for i in range(len(self._counts))]) for name, rows in self._rows.items()}


def choose_among_ranks(
    selection: TokenImportance,
    row_ids: Tensor,
    counts: Tensor,
    scores: dict[str, Tensor],
    *,
    seed: int,
    group: ProcessGroup | None,
    device: torch.device,
) -> tuple[Tensor, dict[str, float]]:
    """Choose among the trained tokens of all ranks (a collective call): every rank computes the whole choice.

    So normalisation, ties and metrics are those of the global batch, exactly, for two numbers a token over the network.

    Args:
        row_ids: [B] int64, a number of each row that no other row of the step has, on any rank.
        counts: [B] trained tokens of each row.
        scores: `entropy` and `divergence`, [T] each, as far as the selection needs them.

    Returns:
        [T] bool (host), this rank's tokens that are kept, and the metrics of all ranks' tokens.
    """
    mine = (row_ids.cpu().repeat_interleave(counts.cpu()), {name: values.cpu() for name, values in scores.items()})
    everybodys: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(everybodys, mine, group=group)
    rows = torch.cat([of_rank[0] for of_rank in everybodys]).to(device)
    gathered = {name: torch.cat([of_rank[1][name] for of_rank in everybodys]).to(device) for name in scores}
    order = rows.argsort(stable=True)  # of equal tokens the first is kept: the same one however rows lie on ranks
    kept = torch.empty_like(rows, dtype=torch.bool)
    kept[order] = choose_tokens(
        selection, rows[order], seed=seed, **{name: values[order] for name, values in gathered.items()}
    )
    start = sum(len(of_rank[0]) for of_rank in everybodys[: distributed.get_rank(group)])
    return kept[start : start + len(mine[0])].cpu(), selection_metrics(kept, rows, **gathered)


def train_only(data: TensorDict, kept: Tensor) -> None:
    """Leave only these tokens in `response_mask` and `loss_mask`, from which verl counts the tokens of an update.

    Args:
        data: nested masks over the responses, which are replaced.
        kept: [N] bool (0 or 1) over all response tokens.
    """
    for name in ("response_mask", "loss_mask"):
        mask = data[name]
        values = torch.cat(mask.unbind())
        data[name] = torch.nested.nested_tensor_from_jagged(values * kept.to(values), mask.offsets())


def leave_out_beyond(data: TensorDict, *, tokens: int) -> None:
    """Leave only the first trained tokens of each row in the loss; arguments as of `train_only`, `within_horizon`."""
    masks = data["response_mask"].unbind()
    trained = torch.cat(masks).bool()
    lengths = torch.tensor([len(mask) for mask in masks], device=trained.device)
    rows = torch.arange(len(masks), device=trained.device).repeat_interleave(lengths)[trained]
    kept = trained.clone()
    kept[trained] = within_horizon(rows, tokens=tokens)
    train_only(data, kept)


def choose(
    data: TensorDict, tasks: StudentTasks, *, student: TrainingWorker, reading: Reading, view: TokenView | None
) -> tuple[RolloutRows, dict[str, float]]:
    """Choose among the step's tokens and leave the others out of the loss; the rows as they are trained on, and metrics.

    Args:
        data: its masks are replaced.
        tasks: of the rows before the choice. Where it needs the teachers, of their hidden states those of the kept tokens stay.
        view: takes note of the choice.
    """
    engine: StudentEngine = student.engine
    selection, rows = tasks.spec.opd.importance.tokens, tasks.rows
    counts = rows.num_trained_tokens
    scores = TokenScores(counts.tolist(), engine.ulysses_parallel_group)
    if selection.needs_student:
        _score(reading.inputs(data, student), tasks, engine, scores)
    kept, metrics = choose_among_ranks(
        selection,
        data["row_id"],
        counts,
        scores.by_name(),
        seed=tasks.choice_seed,
        group=engine.get_data_parallel_group(),
        device=engine.device,
    )
    rank = distributed.get_rank(engine.ulysses_parallel_group) if engine.use_ulysses_sp else None
    if view is not None:
        view.chosen(kept, scores.by_name(), speaks=not rank)
    if selection.needs_teacher:
        for row, of_row in enumerate(kept.split(counts.tolist())):
            tasks.states.keep(row, of_row, rank)
    is_trained = rows.response_mask.clone()
    is_trained[rows.response_mask] = kept.to(is_trained.device)
    train_only(data, is_trained)
    return dataclasses.replace(rows, response_mask=is_trained), metrics


def _score(inputs: TensorDict, tasks: StudentTasks, engine: StudentEngine, scores: TokenScores) -> None:
    """One pass of the student over all rows, without a gradient."""
    kind = tasks.scored_kind
    own_tokens: list[torch.Tensor | None] = [None]

    def task_of(micro_batch: TensorDict, starts: torch.Tensor, own: Slice | None) -> HeadTask:
        if kind is not None:
            task = tasks.scoring(micro_batch, starts, own)
            own_tokens[:] = [task.own]
            return dataclasses.replace(task, loss=tasks.loss_of(kind))
        found = trained_positions(tasks.rows, micro_batch, starts)[1]
        if own is not None:
            found, own_tokens[0] = own.select(found)
        return tasks.entropy(found)

    def take(micro_batch: TensorDict, output: Output) -> None:
        found = {"entropy": output.statistics["entropy"]}
        if kind is not None:
            found["divergence"] = output.scores
        scores.take(micro_batch["opd_row"].tolist(), own_tokens[0], **found)

    engine.read(inputs, task_of, take)


def read_log_probs(
    data: TensorDict,
    rows: RolloutRows,
    read: Callable[[LossPositions], LossTask],
    *,
    worker: TrainingWorker,
    reading: Reading,
) -> list[Tensor]:
    """Return a model's log-probabilities of each row's trained tokens, by one pass over all rows without a gradient.

    Args:
        rows: those of `data`, with the masks of what is trained on.
        read: makes the head's task for the tokens of a micro-batch.
    """
    engine: StudentEngine | TeacherEngine = worker.engine
    counts = rows.num_trained_tokens.tolist()
    scores = TokenScores(counts, engine.ulysses_parallel_group)
    own_tokens: list[torch.Tensor | None] = [None]

    def task_of(micro_batch: TensorDict, starts: torch.Tensor, own: Slice | None) -> HeadTask:
        found = trained_positions(rows, micro_batch, starts)[1]
        if own is not None:
            found, own_tokens[0] = own.select(found)
        return read(found)

    def take(micro_batch: TensorDict, output: Output) -> None:
        scores.take(micro_batch["opd_row"].tolist(), own_tokens[0], log_prob=output.statistics["log_prob"])

    engine.read(reading.inputs(data, worker), task_of, take)
    return list(scores.by_name()["log_prob"].split(counts))
