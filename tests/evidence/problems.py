"""Which problems a run asks, in which order, and what each weighs."""

from __future__ import annotations

import torch
from tests.evidence.cells import Cell
from tests.evidence.settings import Settings
from torch import Tensor

from opd.importance import competence_weights, hard_filter


def problem_weights(cell: Cell, rates: list[float], *, seed: int) -> Tensor:
    """[P] float64 with a mean of 1 over the data set; problems of weight 0 are never asked."""
    kept = hard_filter(rates)
    if cell.problems == "competence":
        return competence_weights(rates)
    if cell.problems == "uniform":
        kept = torch.ones_like(kept)
    elif cell.problems == "random":
        kept = kept[torch.randperm(len(kept), generator=torch.Generator().manual_seed(seed))]
    return competence_weights(rates, alpha=0.0, beta=0.0, kept=kept)


def orders(cell: Cell, settings: Settings, weights: Tensor, *, num_first: int, num_then: int, seed: int) -> list[int]:
    """The problems of all updates one behind another: of the half with known labels first, where there are halves.

    Args:
        weights: [P] of `problem_weights`. num_first, num_then: updates before a cell's `then`, and in it.
    """
    first = second = torch.ones(len(weights), dtype=torch.bool)
    if settings.split:
        drawn = torch.randperm(len(weights), generator=torch.Generator().manual_seed(seed))
        first = drawn < len(weights) // 2
        second = ~first if cell.then_on == "new" else first
    num_asked = settings.batch_size // settings.num_answers
    parts = ((first, num_first), (second, num_then))
    return [index for half, num in parts for index in _order(weights * half, num * num_asked, seed=seed)]


def _order(weights: Tensor, num: int, *, seed: int) -> list[int]:
    """`num` indices of problems of weight above 0: all of them in a drawn order, then all again in another."""
    generator = torch.Generator().manual_seed(seed)
    asked: list[int] = []
    while len(asked) < num:
        order = torch.randperm(len(weights), generator=generator)
        asked += order[weights[order] > 0].tolist()
    return asked[:num]
