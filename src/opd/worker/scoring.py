"""What the student reads of a step before it trains: scores of all tokens and the choice among them, and old log-probabilities."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from tensordict import TensorDict
from torch import distributed
from verl.workers.engine_workers import TrainingWorker

from opd.batch import RolloutRows
from opd.worker.engines import StudentEngine
from opd.worker.head import HeadTask
from opd.worker.reading import Reading, trained_positions
from opd.worker.student_task import StudentTasks
from opd.worker.token_choice import TokenScores, choose_among_ranks, train_only
from opd.worker.token_view import TokenView
from opd.worker.ulysses import Slice


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
            return dataclasses.replace(task, kind=kind)
        found = trained_positions(tasks.rows, micro_batch, starts)[1]
        if own is not None:
            found, own_tokens[0] = own.select(found)
        return tasks.entropy(found.flat_index)

    def take(micro_batch: TensorDict, output: Any) -> None:
        found = {"entropy": output}
        if kind is not None:
            found = {"entropy": output.student_entropy, "divergence": output.scored_divergence}
        scores.take(micro_batch["opd_row"].tolist(), own_tokens[0], **found)

    engine.read(inputs, task_of, take)


def read_log_probs(
    data: TensorDict, tasks: StudentTasks, *, student: TrainingWorker, reading: Reading
) -> list[torch.Tensor]:
    """Log p of each row's trained tokens under the student as it is, by one pass over all rows without a gradient."""
    engine: StudentEngine = student.engine
    counts = tasks.rows.num_trained_tokens.tolist()
    scores = TokenScores(counts, engine.ulysses_parallel_group)
    own_tokens: list[torch.Tensor | None] = [None]

    def task_of(micro_batch: TensorDict, starts: torch.Tensor, own: Slice | None) -> HeadTask:
        found = trained_positions(tasks.rows, micro_batch, starts)[1]
        if own is not None:
            found, own_tokens[0] = own.select(found)
        return tasks.log_probs(found.flat_index, found.token_ids)

    def take(micro_batch: TensorDict, output: torch.Tensor) -> None:
        scores.take(micro_batch["opd_row"].tolist(), own_tokens[0], log_prob=output)

    engine.read(reading.inputs(data, student), task_of, take)
    return list(scores.by_name()["log_prob"].split(counts))
