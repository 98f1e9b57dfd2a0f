"""A few rows of a step token by token, as one rank sees them, for people: entropy, divergence, alternatives, presence in the loss."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from opd.batch.rows import RolloutRows
from opd.losses import Output
from opd.losses.head import NUM_TOP
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
    top_student: np.ndarray
    """[tokens, NUM_TOP, 2] float32, the student's most likely tokens with their probabilities, likewise."""
    top_teacher: np.ndarray
    """Likewise; unknown of a served teacher."""

    def joined(self, other: "RowView") -> "RowView":
        """Return the view of a row that ranks share, from this view and another's."""
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in VALUES}
        return replace(self, **{name: np.where(np.isnan(mine), its, mine) for name, (mine, its) in pairs.items()})


VALUES = {"entropy": (), "divergence": (), "top_student": (NUM_TOP, 2), "top_teacher": (NUM_TOP, 2)}
"""Fields of a view that a rank knows of its own tokens, with the shape of a token's value."""
Seen = dict[int, RowView]
"""Views of rows by `row_id`."""


def seen_by_all(seen: Sequence[Seen]) -> Seen:
    """Return the views of all ranks; ranks that share a sequence each know a part of its tokens."""
    whole: Seen = {}
    for rows in seen:
        for row, view in rows.items():
            whole[row] = whole[row].joined(view) if row in whole else view
    return whole


class TokenView:
    """Notes of one step's rows `shown`, as their tokens are chosen and as the loss computes them."""

    def __init__(self, rows: RolloutRows, row_ids: Sequence[int], shown: Collection[int]) -> None:
        counts = rows.num_trained_tokens.tolist()
        masks = rows.response_mask.cpu().split(rows.response_lens.tolist())
        self._places = torch.arange(sum(counts)).split(counts)
        self._values = {name: torch.full((sum(counts), *shape), torch.nan) for name, shape in VALUES.items()}
        self._kept = torch.ones(sum(counts), dtype=torch.bool)
        self._is_scored, self._read = False, set[int]()
        # verl's padding repeats a row's number, and trains nothing
        self._rows = {row_id: row for row, row_id in enumerate(row_ids) if row_id in shown and counts[row]}
        self._masks = {row: masks[row].numpy() for row in self._rows.values()}

    def chosen(self, kept: Tensor, scores: dict[str, Tensor], *, speaks: bool) -> None:
        """Note the tokens `kept` [T] bool, with their scores as far as known; one of ranks that share a sequence `speaks`."""
        self._kept = kept
        self._is_scored = len(scores) == 2
        for name, values in scores.items() if speaks else ():
            self._values[name] = values.float()

    def awaits(self, row: int) -> bool:
        """Return True for a row that is shown and that no update has read."""
        return row in self._masks and row not in self._read

    def trained(self, rows: Sequence[int], task: LossTask, output: Output) -> None:
        """Note the values of a micro-batch's tokens, in the step's first update."""
        if not any(map(self.awaits, rows)):
            return
        self._read.update(rows)
        places = torch.cat([self._places[row] for row in rows])
        places = places[self._kept[places]]
        places = places if task.own is None else places[task.own.cpu()]
        found = {**output.statistics, "divergence": output.scores}
        for name in found.keys() & set([*VALUES][2:] if self._is_scored else VALUES):
            self._values[name][places] = found[name].float().cpu()

    @property
    def seen(self) -> Seen:
        """Return what this rank saw so far."""
        views: Seen = {}
        for row_id, row in self._rows.items():
            places = self._places[row]
            values = {name: each[places].numpy() for name, each in self._values.items()}
            views[row_id] = RowView(trained=self._masks[row], kept=self._kept[places].numpy(), **values)
        return views
