"""The choice among a step's tokens, and the masks that it, the horizon and rows without weight leave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, distributed
from torch.distributed import ProcessGroup
from verl.workers.engine_workers import TrainingWorker

from opd.experiment.algorithm import TokenImportance
from opd.losses import Output
from opd.update.divergence_loss import DivergenceLoss
from opd.update.engines import StudentEngine
from opd.update.reading import Reading, read_tokens
from opd.weights import choose_tokens, selection_metrics
from opd.weights.stages import within_horizon


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

    Args:
        row_ids: [B] int64, different for each row of the step. counts: trained tokens of each row.
        scores: `entropy` and `divergence`, [T] each, as far as the selection needs them.

    Returns:
        [T] bool (host), this rank's tokens that are kept, and the metrics of all ranks' tokens.
    """
    mine = row_ids.cpu().repeat_interleave(torch.tensor(counts)), {name: v.cpu() for name, v in scores.items()}
    of_ranks: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(of_ranks, mine, group=group)
    rows = torch.cat([of_rank[0] for of_rank in of_ranks]).to(device)
    gathered = {name: torch.cat([of_rank[1][name] for of_rank in of_ranks]).to(device) for name in scores}
    # Of equal tokens the first is kept: the same token for any spread of rows over ranks.
    order = rows.argsort(stable=True)
    kept = torch.empty_like(rows, dtype=torch.bool)
    ordered = {name: values[order] for name, values in gathered.items()}
    kept[order] = choose_tokens(selection, rows[order], seed=seed, **ordered)
    start = sum(len(of_rank[0]) for of_rank in of_ranks[: distributed.get_rank(group)])
    return kept[start : start + len(mine[0])].cpu(), selection_metrics(kept, rows, **gathered)


def keep_tokens(data: TensorDict, kept: Tensor, names: Sequence[str] = ("response_mask", "loss_mask")) -> None:
    """Leave only the tokens of `kept`, [N] bool over all response tokens, in the masks; verl counts tokens by `loss_mask`."""
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
    """Leave only tokens of the rows `needed` [B] bool for the head; the others count in the loss's divisor all the same."""
    if not bool(needed.all()):
        keep_tokens(data, needed[_row_of_token(data["response_mask"].unbind())], ("response_mask",))


def _row_of_token(masks: Sequence[Tensor]) -> Tensor:
    lengths = torch.tensor([len(mask) for mask in masks], device=masks[0].device)
    return torch.arange(len(masks), device=lengths.device).repeat_interleave(lengths)


def choose(
    data: TensorDict, loss: DivergenceLoss, *, seed: int, student: TrainingWorker, reading: Reading
) -> tuple[DivergenceLoss, dict[str, float]]:
    """Choose among the step's tokens; return the loss of the kept ones, and metrics. The masks of `data` follow."""
    engine: StudentEngine = student.engine
    selection, counts, scores = loss.spec.opd.importance.tokens, loss.rows.num_trained_tokens.tolist(), {}
    if selection.needs_student:

        def values(output: Output) -> dict[str, Tensor]:
            found = {"entropy": output.statistics["entropy"]}
            return found | ({"divergence": output.scores} if selection.needs_teacher else {})

        scores = read_tokens(data, loss.scoring(), values, worker=student, reading=reading)
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
    loss = loss.keeping(kept)
    keep_tokens(data, loss.rows.response_mask)
    return loss, metrics
