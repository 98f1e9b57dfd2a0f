"""Passes without a gradient over a step's rows, and the choice among their tokens: scores, old and reference log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, distributed
from torch.distributed import ProcessGroup
from verl.workers.engine_workers import TrainingWorker

from opd.batch import RolloutRows
from opd.experiment.algorithm import TokenImportance
from opd.losses import Output
from opd.update.divergence_loss import DivergenceLoss
from opd.update.engines import StudentEngine, TeacherEngine
from opd.update.loss_task import LossTask
from opd.update.reading import Reading, trained_positions
from opd.update.ulysses import Slice
from opd.weights import choose_tokens, selection_metrics
from opd.weights.stages import within_horizon

BuildTask = Callable[[TensorDict, Tensor, Slice | None], LossTask]
"""Maker of the head's task from a micro-batch, the start of each of its rows, and this rank's slice."""


def read_tokens(
    data: TensorDict,
    rows: RolloutRows,
    build: BuildTask,
    values: Callable[[Output], dict[str, Tensor]],
    *,
    worker: TrainingWorker,
    reading: Reading,
) -> dict[str, Tensor]:
    """Return numbers of all trained tokens by name, [T] each in the order of the rows, by one pass (a collective call).

    Ranks that share a sequence all get the numbers of all its tokens.

    Args:
        rows: the rows of `data`, with the masks of what is trained on.
        values: of the head's output: the numbers by name.
    """
    engine: StudentEngine | TeacherEngine = worker.engine
    counts, of_rows = rows.num_trained_tokens.tolist(), dict[str, dict[int, Tensor]]()
    tasks: list[LossTask] = []

    def task_of(micro_batch: TensorDict, starts: Tensor, own: Slice | None) -> LossTask:
        tasks[:] = [build(micro_batch, starts, own)]
        return tasks[0]

    def take(micro_batch: TensorDict, output: Output) -> None:
        numbers, own = micro_batch["opd_row"].tolist(), tasks[0].own
        for name, found in values(output).items():
            if own is not None:
                mine, found = found, found.new_zeros(len(own))
                found[own.to(found.device)] = mine
                distributed.all_reduce(found, group=engine.ulysses_parallel_group)
            parts = found.split([counts[row] for row in numbers])
            of_rows.setdefault(name, {}).update(zip(numbers, parts, strict=True))

    engine.read(reading.inputs(data, worker), task_of, take)
    return {name: torch.cat([parts[row] for row in range(len(counts))]) for name, parts in of_rows.items()}


def read_log_probs(
    data: TensorDict, rows: RolloutRows, *, worker: TrainingWorker, reading: Reading, **options: Any
) -> list[Tensor]:
    """Return a model's log-probabilities of each row's trained tokens; options are fields of the head's task."""

    def values(output: Output) -> dict[str, Tensor]:
        return {"log_prob": output.statistics["log_prob"]}

    found = read_tokens(data, rows, reading_task(rows, **options), values, worker=worker, reading=reading)
    return list(found["log_prob"].cpu().split(rows.num_trained_tokens.tolist()))


def reading_task(rows: RolloutRows, **options: Any) -> BuildTask:
    """Return the builder of tasks that read statistics of rows' trained tokens."""

    def build(micro_batch: TensorDict, starts: Tensor, own: Slice | None) -> LossTask:
        found, is_own = trained_positions(rows, micro_batch, starts)[1], None
        if own is not None:
            found, is_own = own.select(found)
        return LossTask.reading(found, own=is_own, **options)

    return build


def choose_among_ranks(
    selection: TokenImportance,
    row_ids: Tensor,
    counts: Sequence[int],
    scores: dict[str, Tensor],
    *,
    seed: int,
    group: ProcessGroup | None,
    device: torch.device,
) -> tuple[Tensor, dict[str, float]]:
    """Choose among the trained tokens of all ranks (a collective call): every rank computes the whole choice.

    The global batch decides normalisation, ties and metrics. Two numbers a token go over the network.

    Args:
        row_ids: [B] int64, a number of each row that no other row of the step has, on any rank.
        counts: trained tokens of each row.
        scores: `entropy` and `divergence`, [T] each, as far as the selection needs them.

    Returns:
        [T] bool (host), this rank's tokens that are kept, and the metrics of all ranks' tokens.
    """
    mine = row_ids.cpu().repeat_interleave(torch.tensor(counts)), {name: v.cpu() for name, v in scores.items()}
    of_ranks: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(of_ranks, mine, group=group)
    rows = torch.cat([of_rank[0] for of_rank in of_ranks]).to(device)
    gathered = {name: torch.cat([of_rank[1][name] for of_rank in of_ranks]).to(device) for name in scores}
    order = rows.argsort(
        stable=True
    )  # of equal tokens the first is kept: the same one however rows are spread over ranks
    kept = torch.empty_like(rows, dtype=torch.bool)
    ordered = {name: values[order] for name, values in gathered.items()}
    kept[order] = choose_tokens(selection, rows[order], seed=seed, **ordered)
    start = sum(len(of_rank[0]) for of_rank in of_ranks[: distributed.get_rank(group)])
    return kept[start : start + len(mine[0])].cpu(), selection_metrics(kept, rows, **gathered)


def keep_tokens(data: TensorDict, kept: Tensor, names: Sequence[str] = ("response_mask", "loss_mask")) -> None:
    """Leave only these tokens in the masks; verl counts an update's tokens from `loss_mask`.

    Args:
        data: nested masks over the responses, which are replaced.
        kept: [N] bool (0 or 1) over all response tokens.
    """
    for name in names:
        mask = data[name]
        values = torch.cat(mask.unbind())
        data[name] = torch.nested.nested_tensor_from_jagged(values * kept.to(values), mask.offsets())


def keep_horizon(data: TensorDict, *, tokens: int) -> None:
    """Leave only the first trained tokens of each row in the masks."""
    masks = data["response_mask"].unbind()
    trained = torch.cat(masks).bool()
    kept = trained.clone()
    kept[trained] = within_horizon(_row_of_token(masks)[trained], tokens=tokens)
    keep_tokens(data, kept)


def keep_rows(data: TensorDict, needed: Tensor) -> None:
    """Leave no token of the other rows for the head; they count in the loss's divisor all the same.

    Args:
        needed: [B] bool.
    """
    if not bool(needed.all()):
        keep_tokens(data, needed[_row_of_token(data["response_mask"].unbind())], ("response_mask",))


def _row_of_token(masks: Sequence[Tensor]) -> Tensor:
    lengths = torch.tensor([len(mask) for mask in masks], device=masks[0].device)
    return torch.arange(len(masks), device=lengths.device).repeat_interleave(lengths)


def choose(
    data: TensorDict, loss: DivergenceLoss, *, seed: int, student: TrainingWorker, reading: Reading
) -> tuple[DivergenceLoss, dict[str, float]]:
    """Choose among the step's tokens; return the loss of the kept ones, and metrics.

    Args:
        data: its masks are replaced.
        loss: of the rows before the choice. Where the choice needs the teachers, only the kept tokens' hidden states stay.
        seed: by which tokens are drawn.
    """
    engine: StudentEngine = student.engine
    selection, rows = loss.spec.opd.importance.tokens, loss.rows
    counts, scores = rows.num_trained_tokens.tolist(), dict[str, Tensor]()
    if selection.needs_student:
        temperature = loss.spec.rollout.temperature
        entropy = reading_task(rows, temperature=temperature, watch=("entropy",), **loss.sizes)

        def values(output: Output) -> dict[str, Tensor]:
            found = {"entropy": output.statistics["entropy"]}
            return found | ({"divergence": output.scores} if selection.needs_teacher else {})

        build = loss.scoring if selection.needs_teacher else entropy
        scores = read_tokens(data, rows, build, values, worker=student, reading=reading)
    kept, metrics = choose_among_ranks(
        selection,
        data["row_id"],
        counts,
        scores,
        seed=seed,
        group=engine.get_data_parallel_group(),
        device=engine.device,
    )
    rank = distributed.get_rank(engine.ulysses_parallel_group) if engine.use_ulysses_sp else None
    if loss.view is not None:
        loss.view.chosen(kept, scores, speaks=not rank)
    if selection.needs_teacher:
        for row, of_row in enumerate(kept.split(counts)):
            loss.states.keep(row, of_row, rank)
    is_trained = rows.response_mask.clone()
    is_trained[rows.response_mask] = kept.to(is_trained.device)
    keep_tokens(data, is_trained)
    return replace(loss, rows=replace(rows, response_mask=is_trained)), metrics
