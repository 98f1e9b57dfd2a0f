"""Which of a step's tokens are trained on: scores from the student's pass, gathered from all ranks, and the masks they make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, distributed
from torch.distributed import ProcessGroup

from opd.config.algorithm import TokenImportance
from opd.importance import choose_tokens, selection_metrics
from opd.importance.stages import within_horizon


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
