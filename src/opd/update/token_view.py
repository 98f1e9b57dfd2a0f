"""A step's tokens as one rank sees them, for people: their density, and entropy and divergence of a few rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from opd.batch.rows import RolloutRows
from opd.losses import Output
from opd.runs.tokens import EDGES, NUM_BINS
from opd.update.head import LossTask


@dataclass(kw_only=True)
class RowView:
    """One row; `entropy`, `divergence` and `kept` have an entry for each token that could be trained on."""

    trained: np.ndarray
    """[response tokens] bool, what could be trained on."""
    kept: np.ndarray
    """bool, in the loss."""
    entropy: np.ndarray
    """float32 in nats, nan where this rank does not know it."""
    divergence: np.ndarray
    """Likewise."""

    @classmethod
    def unread(cls, trained: np.ndarray) -> RowView:
        num = int(trained.sum())
        blank = np.full(num, np.nan, np.float32)
        return cls(trained=trained, kept=np.ones(num, bool), entropy=blank, divergence=blank.copy())

    def joined(self, other: RowView) -> RowView:
        """Return the view of a row that ranks share, from this view and another's."""

        def known(mine: np.ndarray, others: np.ndarray) -> np.ndarray:
            return np.where(np.isnan(mine), others, mine)

        return replace(
            self,
            entropy=known(self.entropy, other.entropy),
            divergence=known(self.divergence, other.divergence),
        )


@dataclass(kw_only=True)
class Seen:
    """What was seen of a step's tokens, on one rank or on all."""

    density: np.ndarray = field(default_factory=lambda: np.zeros((NUM_BINS, NUM_BINS, 2), np.int64))
    """[bin of the entropy, bin of the divergence, (tokens, of which in the loss)]"""
    covers_all: bool = True
    """Whether all trained tokens are counted; False: those in the loss."""
    rows: dict[int, RowView] = field(default_factory=dict)
    """By `row_id`."""

    @classmethod
    def of_ranks(cls, seen: Sequence[Seen]) -> Seen:
        """Return the sum of all ranks; those that share a sequence counted a part of its tokens each."""
        whole = cls(
            density=np.sum([one.density for one in seen], axis=0), covers_all=all(one.covers_all for one in seen)
        )
        for one in seen:
            for row, view in one.rows.items():
                whole.rows[row] = whole.rows[row].joined(view) if row in whole.rows else view
        return whole


class TokenView:
    """Notes of one step's tokens, as they are chosen and as the loss computes them.

    Args:
        rows: the step's rows on this rank, before any choice. row_ids: [B], different for each row of the step.
        shown: the ids of rows whose tokens are wanted one by one.
    """

    def __init__(self, rows: RolloutRows, row_ids: Sequence[int], shown: Collection[int]) -> None:
        self.seen = Seen()
        self._counts = rows.num_trained_tokens.tolist()
        self._is_counted = False
        self._read: set[int] = set()
        self._shown: dict[int, RowView] = {}
        masks = rows.response_mask.cpu().split(rows.response_lens.tolist())
        for row, (row_id, count) in enumerate(zip(row_ids, self._counts, strict=True)):
            if row_id in shown and count:  # verl's padding repeats a row's number, and trains nothing
                self._shown[row] = self.seen.rows[row_id] = RowView.unread(masks[row].numpy())

    def chosen(self, kept: Tensor, scores: dict[str, Tensor], *, speaks: bool) -> None:
        """Note the tokens `kept` [T] bool, with their scores as far as known; one of ranks that share a sequence `speaks`."""
        for row, (of_row, *values) in enumerate(
            zip(*(each.split(self._counts) for each in (kept, *scores.values())), strict=True)
        ):
            if row in self._shown:
                self._shown[row].kept = of_row.cpu().numpy()
                _fill(self._shown[row], slice(None), dict(zip(scores, values, strict=True)))
        self._counts = [int(part.sum()) for part in kept.split(self._counts)]
        self._is_counted = self.seen.covers_all = len(scores) == 2
        if self._is_counted and speaks:
            self.seen.density += density(**scores, kept=kept)

    def trained(self, rows: Sequence[int], task: LossTask, output: Output) -> None:
        """Note the values of a micro-batch's tokens, in the step's first update."""
        if self._read.issuperset(rows):
            return
        self._read.update(rows)
        values = {"entropy": output.statistics["entropy"], "divergence": output.scores}
        if task.own is not None:
            values = {name: _spread(each, task.own) for name, each in values.items()}
        if not self._is_counted:
            self.seen.density += density(**values, kept=torch.ones_like(values["entropy"], dtype=torch.bool))
        counts = [self._counts[row] for row in rows]
        for row, *parts in zip(rows, *(each.split(counts) for each in values.values()), strict=True):
            if row in self._shown:
                view = self._shown[row]
                _fill(view, view.kept.nonzero()[0], dict(zip(values, parts, strict=True)))


def density(*, entropy: Tensor, divergence: Tensor, kept: Tensor) -> np.ndarray:
    """Return [bins, bins, 2] numbers of tokens by entropy and divergence: all with finite values, and those kept."""
    edges = torch.tensor(EDGES, device=entropy.device)
    is_known = torch.isfinite(entropy) & torch.isfinite(divergence)
    h, d = (torch.bucketize(values.float()[is_known], edges, right=True) for values in (entropy, divergence))
    cell = h * NUM_BINS + d
    counts = [torch.bincount(cells, minlength=NUM_BINS**2) for cells in (cell, cell[kept.to(cell.device)[is_known]])]
    return torch.stack(counts, dim=1).cpu().numpy().reshape(NUM_BINS, NUM_BINS, 2)


def _spread(values: Tensor, places: Tensor) -> Tensor:
    """Return the N values at the true places of [M], nan elsewhere."""
    out = values.new_full((len(places),), torch.nan)
    out[places.to(values.device)] = values
    return out


def _fill(view: RowView, places: np.ndarray | slice, values: dict[str, Tensor]) -> None:
    """Set values of the row's tokens at `places` that are unknown."""
    for name, new in values.items():
        known = getattr(view, name)
        old = known[places]
        known[places] = np.where(np.isnan(old), new.float().cpu().numpy(), old)
