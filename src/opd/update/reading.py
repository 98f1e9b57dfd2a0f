"""Passes over a step's rows without a gradient: numbers of their trained tokens, and the choice among these tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, distributed
from torch.distributed import ProcessGroup

from opd.batch.rows import RolloutRows
from opd.experiment.algorithm import TokenImportance
from opd.losses import Loss, Output
from opd.update.head_engine import HeadEngine
from opd.update.losses import DivergenceLoss, HeadLoss
from opd.weights.tokens import choose_tokens, places, selection_metrics


def read_tokens(
    data: TensorDict, loss: HeadLoss, values: Callable[[Output], dict[str, Tensor]], engine: HeadEngine
) -> dict[str, Tensor]:
    """Return numbers of all trained tokens by name, [T] each on the host, by one pass (a collective call).

    Ranks that share a sequence all get the numbers of all its tokens.

    Args:
        loss: of the rows of `data`. values: the numbers in the head's output.
    """
    counts = loss.rows.num_trained_tokens.tolist()
    of_rows: dict[str, dict[int, Tensor]] = defaultdict(dict)
    for micro_batch, task, output in engine.read(data, loss.task):
        numbers = micro_batch["opd_row"].tolist()
        for name, found in values(output).items():
            if task.own is not None:
                mine, found = found, found.new_zeros(len(task.own))
                found[task.own] = mine
                distributed.all_reduce(found, group=engine.ulysses_parallel_group)
            of_rows[name].update(zip(numbers, found.split([counts[row] for row in numbers]), strict=True))
    return {name: torch.cat([parts[row] for row in range(len(counts))]).cpu() for name, parts in of_rows.items()}


def read_log_probs(
    data: TensorDict, rows: RolloutRows, engine: HeadEngine, *, temperature: float, sizes: dict[str, Any]
) -> Tensor:
    """Return a model's log-probabilities [T] of the trained tokens; `sizes` are those of `LossTask`."""
    loss = HeadLoss(rows=rows, loss=Loss(temperature=temperature), options={"sizes": sizes})
    return read_tokens(data, loss, lambda output: {"log_prob": output.statistics["log_prob"]}, engine)["log_prob"]


def choose(
    data: TensorDict, loss: DivergenceLoss, engine: HeadEngine, *, seed: tuple[int, ...]
) -> tuple[DivergenceLoss, dict[str, float]]:
    """Choose among the step's tokens; return the loss of the kept ones, and metrics. The masks of `data` follow."""
    selection, counts = loss.spec.opd.importance.tokens, loss.rows.num_trained_tokens.tolist()
    scores: dict[str, Tensor] = {}
    if selection.needs_student:

        def values(output: Output) -> dict[str, Tensor]:
            found = {"entropy": output.statistics["entropy"]}
            return found | ({"divergence": output.scores} if selection.needs_teacher else {})

        scores = read_tokens(data, loss.scoring(), values, engine)
    rows = data["row_id"].repeat_interleave(torch.tensor(counts))
    group = engine.get_data_parallel_group()
    kept, metrics = choose_among_ranks(selection, rows, scores, seed=seed, group=group, device=engine.device)
    rank = distributed.get_rank(engine.ulysses_parallel_group) if engine.use_ulysses_sp else None
    if loss.view is not None:
        loss.view.chosen(kept, scores, speaks=not rank)
    if selection.needs_teacher:
        for row, of_row in enumerate(kept.split(counts)):
            loss.states.keep(row, of_row, rank)
    loss = loss.keeping(kept)
    keep_tokens(data, loss.rows.response_mask)
    return loss, metrics


def choose_among_ranks(
    selection: TokenImportance,
    rows: Tensor,
    scores: dict[str, Tensor],
    *,
    seed: tuple[int, ...],
    group: ProcessGroup | None,
    device: torch.device,
) -> tuple[Tensor, dict[str, float]]:
    """Choose among the trained tokens of all ranks (a collective call): every rank computes the whole choice.

    Args:
        rows: [T] int64, each token's row, different for each row of the step.
        scores: `entropy` and `divergence`, [T] each, as far as the selection needs them.

    Returns:
        [T] bool (host), this rank's tokens that are kept, and the metrics of all ranks' tokens.
    """
    of_ranks: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(of_ranks, {"rows": rows.cpu(), **scores}, group=group)
    whole = {name: torch.cat([of_rank[name] for of_rank in of_ranks]).to(device) for name in ("rows", *scores)}
    whole_rows = whole.pop("rows")
    # Of equal tokens the first is kept: the same token for any spread of rows over ranks.
    order = whole_rows.argsort(stable=True)
    kept = torch.empty_like(whole_rows, dtype=torch.bool)
    ordered = {name: values[order] for name, values in whole.items()}
    kept[order] = choose_tokens(selection, whole_rows[order], seed=seed, **ordered)
    start = sum(len(of_rank["rows"]) for of_rank in of_ranks[: distributed.get_rank(group)])
    return kept[start : start + len(rows)].cpu(), selection_metrics(kept, whole_rows, whole)


def keep_tokens(data: TensorDict, kept: Tensor, names: Sequence[str] = ("response_mask", "loss_mask")) -> None:
    """Leave only the tokens of `kept`, [N] bool over all response tokens, in the masks; verl counts tokens by `loss_mask`."""
    for name in names:
        mask = data[name]
        values = torch.cat(mask.unbind())
        data[name] = torch.nested.nested_tensor_from_jagged(values * kept.to(values), mask.offsets())


def keep_horizon(data: TensorDict, *, tokens: int) -> None:
    """Leave only the first trained tokens of each row in the masks."""
    kept = torch.cat(data["response_mask"].unbind()).bool()
    kept[kept.clone()] = places(_row_of_token(data)[kept])[0] < tokens
    keep_tokens(data, kept)


def keep_rows(data: TensorDict, needed: Tensor) -> None:
    """Leave only tokens of the rows `needed` [B] bool for the head; the others count in the loss's divisor all the same."""
    if not bool(needed.all()):
        keep_tokens(data, needed[_row_of_token(data)], ("response_mask",))


def _row_of_token(data: TensorDict) -> Tensor:
    lengths = data["response_mask"].offsets().diff()
    return torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)


def keep_shared(data: TensorDict, shared: int, read: Tensor) -> int:
    """Leave only the tokens before the first that the teacher lacks in each row's masks; return the number of others.

    Args:
        shared: the teacher lacks ids from here on. read: nested [B, j] rows that it reads, which end with the responses.
    """
    if not read.values().numel() or int(read.values().max()) < shared:
        return 0
    masks = data["response_mask"].unbind()
    is_read = [(row >= shared).cumsum(0) == 0 for row in read.unbind()]
    kept = torch.cat([row[len(row) - len(mask) :] for row, mask in zip(is_read, masks, strict=True)])
    num_left_out = int((torch.cat(masks).bool() & ~kept).sum())
    keep_tokens(data, kept)
    return num_left_out
