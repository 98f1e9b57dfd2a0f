"""Passes over a step's rows without a gradient: numbers of their trained tokens, and the choice among these tokens."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict
from torch import Tensor, distributed

from opd.batch.rows import RolloutRows
from opd.update.head import HeadLoss
from opd.update.head_engine import HeadEngine
from opd.weights.tokens import choose_tokens, selection_metrics

if TYPE_CHECKING:
    from opd.update.opd_worker import DivergenceLoss


def read_statistics(data: TensorDict, loss: HeadLoss, names: Sequence[str], engine: HeadEngine) -> dict[str, Tensor]:
    """Return statistics of all trained tokens by name, [T] each on the host, by one pass (a collective call).

    Ranks that share a sequence all get the numbers of all its tokens.
    """
    counts = loss.rows.num_trained_tokens.tolist()
    of_rows: dict[str, dict[int, Tensor]] = {name: {} for name in names}
    for micro_batch, task, output in engine.read(data, loss.task):
        numbers = micro_batch["opd_row"].tolist()
        for name in names:
            found = output.scores if name == "divergence" else output.statistics[name]
            if task.own is not None:
                mine, found = found, found.new_zeros(len(task.own))
                found[task.own] = mine
                distributed.all_reduce(found, group=engine.ulysses_parallel_group)
            of_rows[name].update(zip(numbers, found.split([counts[row] for row in numbers]), strict=True))
    return {name: torch.cat([parts[row] for row in range(len(counts))]).cpu() for name, parts in of_rows.items()}


def choose(
    data: TensorDict, loss: "DivergenceLoss", engine: HeadEngine, *, seed: tuple[int, ...]
) -> "tuple[DivergenceLoss, dict[str, float]]":
    """Choose among the step's tokens; return the loss of the kept ones, and metrics. The masks of `data` follow.

    Every rank computes the whole choice from the scores of all ranks (a collective call).
    """
    selection, counts = loss.spec.opd.importance.tokens, loss.rows.num_trained_tokens.tolist()
    scores: dict[str, Tensor] = {}
    if selection.needs_student:
        names = ("entropy", "divergence") if selection.needs_teacher else ("entropy",)
        scores = read_statistics(data, loss.scoring(), names, engine)
    mine = {"rows": data["row_id"].cpu().repeat_interleave(torch.tensor(counts)), **scores}
    group = engine.get_data_parallel_group()
    of_ranks: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(of_ranks, mine, group=group)
    whole = {name: torch.cat([of_rank[name] for of_rank in of_ranks]).to(engine.device) for name in mine}
    rows = whole.pop("rows")
    # Of equal tokens the first is kept: the same token for any spread of rows over ranks.
    order = rows.argsort(stable=True)
    is_kept = torch.empty_like(rows, dtype=torch.bool)
    ordered = {name: values[order] for name, values in whole.items()}
    is_kept[order] = choose_tokens(selection, rows[order], seed=seed, **ordered)
    start = sum(len(of_rank["rows"]) for of_rank in of_ranks[: distributed.get_rank(group)])
    kept = is_kept[start : start + len(mine["rows"])].cpu()
    rank = distributed.get_rank(engine.ulysses_parallel_group) if engine.use_ulysses_sp else None
    if loss.view is not None:
        loss.view.chosen(kept, scores, speaks=not rank)
    if selection.needs_teacher and loss.states is not None:
        for row, of_row in enumerate(kept.split(counts)):
            loss.states.keep(row, of_row, rank)
    loss = loss.keeping(kept)
    keep_tokens(data, loss.rows.response_mask, "response_mask", "loss_mask")
    return loss, selection_metrics(is_kept, rows, whole)


def keep_tokens(data: TensorDict, kept: Tensor, *names: str) -> None:
    """Leave only the tokens of `kept`, [N] bool over all response tokens, in these masks; verl counts tokens by `loss_mask`."""
    for name in names:
        mask = data[name]
        values = torch.cat(mask.unbind())
        data[name] = torch.nested.nested_tensor_from_jagged(values * kept.to(values), mask.offsets())


def before_unshared(rows: RolloutRows, shared: int) -> Tensor:
    """Return [N] bool over all response tokens: those before the row's first id from `shared` on, which the teacher lacks."""
    lacks = rows.input_ids >= shared
    num, starts = lacks.cumsum(0), rows.offsets[:-1]
    is_read = num == (num - lacks.long())[starts].repeat_interleave(rows.lens)
    return is_read[rows.position_ids >= rows.prompt_lens.repeat_interleave(rows.lens)]
