"""A step's tokens as one rank sees them, for people: their density, and entropy and divergence of a few rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from opd.batch.rows import RolloutRows
from opd.losses import Output
from opd.update.head import LossTask

EDGES = tuple(10 ** (k / 6) for k in range(-36, 7))
"""Nats between the density's bins, for entropy and divergence: six a decade from 1e-6 to 10; the outer bins are open."""
NUM_BINS = len(EDGES) + 1


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

    def joined(self, other: RowView) -> RowView:
        """Return the view of a row that ranks share, from this view and another's."""
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in ("entropy", "divergence")}
        return replace(self, **{name: np.where(np.isnan(mine), its, mine) for name, (mine, its) in pairs.items()})


@dataclass(kw_only=True)
class Seen:
    """The view of a step's tokens, on one rank or on all."""

    density: np.ndarray = field(default_factory=lambda: np.zeros((NUM_BINS, NUM_BINS, 2), np.int64))
    """[bin of the entropy, bin of the divergence, (tokens, of which in the loss)]"""
    covers_all: bool = True
    """All trained tokens are counted; False means those in the loss."""
    rows: dict[int, RowView] = field(default_factory=dict)
    """By `row_id`."""

    @classmethod
    def of_ranks(cls, seen: Sequence[Seen]) -> Seen:
        """Return the sum of all ranks; those that share a sequence counted a part of its tokens each."""
        density, covers_all = np.sum([one.density for one in seen], axis=0), all(one.covers_all for one in seen)
        whole = cls(density=density, covers_all=covers_all)
        for one in seen:
            for row, view in one.rows.items():
                whole.rows[row] = whole.rows[row].joined(view) if row in whole.rows else view
        return whole


class TokenView:
    """Notes of one step's tokens, as they are chosen and as the loss computes them; the rows `shown` are kept one by one."""

    def __init__(self, rows: RolloutRows, row_ids: Sequence[int], shown: Collection[int]) -> None:
        counts = rows.num_trained_tokens.tolist()
        self._places = torch.arange(sum(counts)).split(counts)
        self._values = {name: torch.full((sum(counts),), torch.nan) for name in ("entropy", "divergence")}
        self._kept = torch.ones(sum(counts), dtype=torch.bool)
        self._covers_all, self._is_scored, self._read = True, False, set[int]()
        masks = rows.response_mask.cpu().split(rows.response_lens.tolist())
        # verl's padding repeats a row's number, and trains nothing
        self._shown = {row_id: row for row, row_id in enumerate(row_ids) if row_id in shown and counts[row]}
        self._masks = {row: masks[row].numpy() for row in self._shown.values()}

    def chosen(self, kept: Tensor, scores: dict[str, Tensor], *, speaks: bool) -> None:
        """Note the tokens `kept` [T] bool, with their scores as far as known; one of ranks that share a sequence `speaks`."""
        self._kept = kept
        self._is_scored = self._covers_all = len(scores) == 2
        for name, values in scores.items() if speaks else ():
            self._values[name] = values.float()

    def trained(self, rows: Sequence[int], task: LossTask, output: Output) -> None:
        """Note the values of a micro-batch's tokens, in the step's first update."""
        if self._is_scored or self._read.issuperset(rows):
            return
        self._read.update(rows)
        places = torch.cat([self._places[row] for row in rows])
        places = places[self._kept[places]]
        places = places if task.own is None else places[task.own.cpu()]
        for name, values in (("entropy", output.statistics["entropy"]), ("divergence", output.scores)):
            self._values[name][places] = values.float().cpu()

    @property
    def seen(self) -> Seen:
        """Return what this rank saw so far."""
        rows = {}
        for row_id, row in self._shown.items():
            values = {name: each[self._places[row]].numpy() for name, each in self._values.items()}
            kept = self._kept[self._places[row]].numpy()
            rows[row_id] = RowView(trained=self._masks[row], kept=kept, **values)
        return Seen(density=density(**self._values, kept=self._kept), covers_all=self._covers_all, rows=rows)


def density(*, entropy: Tensor, divergence: Tensor, kept: Tensor) -> np.ndarray:
    """Return [bins, bins, 2] numbers of tokens by entropy and divergence: all with finite values, and those kept."""
    is_known = torch.isfinite(entropy) & torch.isfinite(divergence)
    h, d = (torch.bucketize(each.float()[is_known], torch.tensor(EDGES), right=True) for each in (entropy, divergence))
    cell = h * NUM_BINS + d
    counts = [torch.bincount(cells, minlength=NUM_BINS**2) for cells in (cell, cell[kept[is_known]])]
    return torch.stack(counts, dim=1).numpy().reshape(NUM_BINS, NUM_BINS, 2)
