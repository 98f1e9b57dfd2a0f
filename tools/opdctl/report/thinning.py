"""Thins curves to what a page can hold: every bucket of neighbouring steps by its mean and both of its extremes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MAX_DRAWN = 1e100
"""Axes cannot reach over what a float can just hold."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Steps of one chart over all of its runs, cut into buckets of `width` neighbours (the last one of what is left)."""

    steps: np.ndarray
    """[num_steps] int, ascending."""
    width: int

    @property
    def firsts(self) -> np.ndarray:
        """[num_buckets] the first step of each."""
        return self.steps[:: self.width]

    @property
    def lasts(self) -> np.ndarray:
        """[num_buckets] the last step of each."""
        last_of = np.minimum(np.arange(1, len(self.firsts) + 1) * self.width, len(self.steps)) - 1
        lasts: np.ndarray = self.steps[last_of]
        return lasts


@dataclass(frozen=True, kw_only=True)
class Thinned:
    """One run's curve on a grid, [num_buckets] each, nan where it has nothing.

    `first` and `second` are the lowest and the highest value of a bucket, in the order in which they came.
    """

    mean: np.ndarray
    first: np.ndarray
    second: np.ndarray


def grid_of(steps: np.ndarray, *, max_buckets: int) -> Grid:
    """The finest grid of at most `max_buckets`."""
    return Grid(steps=steps, width=max(-(-len(steps) // max_buckets), 1))


def thin(grid: Grid, steps: np.ndarray, values: np.ndarray) -> Thinned:
    """A curve on the grid; values that cannot be drawn are left out.

    Args:
        steps, values: [num_logged], ascending; every step is one of the grid's.
    """
    out = Thinned(**{name: np.full(len(grid.firsts), np.nan) for name in ("mean", "first", "second")})
    is_drawn = np.abs(values) <= MAX_DRAWN
    steps, values = steps[is_drawn], values[is_drawn].astype(float)
    if not len(values):
        return out
    bucket = np.searchsorted(grid.steps, steps) // grid.width
    starts = np.flatnonzero(np.diff(bucket, prepend=-1))
    sizes = np.diff(np.append(starts, len(values)))
    low, high = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
    place = np.arange(len(values))
    end = len(values)
    low_at, high_at = (
        np.minimum.reduceat(np.where(values == np.repeat(extreme, sizes), place, end), starts)
        for extreme in (low, high)
    )
    filled = bucket[starts]
    out.mean[filled] = np.add.reduceat(values, starts) / sizes
    out.first[filled] = np.where(low_at <= high_at, low, high)
    out.second[filled] = np.where(low_at <= high_at, high, low)
    return out
