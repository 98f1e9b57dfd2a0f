"""The choice of tokens within a micro-batch while its tokens are still being scored, and at the end: what `choose_tokens` keeps."""

import bisect
import itertools
from fractions import Fraction

import torch
from torch import Tensor

from opd.config.algorithm import TokenImportance
from opd.importance.tokens import (
    best_of_groups,
    comparable,
    num_kept,
    sampling_keys,
    sampling_noise,
    token_scores,
)

SPARE = Fraction(5, 4)
"""Of the tokens scored so far, how many times the ratio is held: a scale, and the rest of a rollout, may still change the choice."""


class MicroBatchChoice:
    """Which of T trained tokens a selection keeps. Its numbers are read by the host once, here; a choice waits for nothing,
    but by `entropy_length`, which counts each rollout's tokens anew.

    Args:
        row_index: [T] int64, a number of each token's rollout; a rollout's tokens follow each other.
        seed: as of `select_tokens`.

    Raises:
        ValueError: a rollout's tokens lie apart.
    """

    def __init__(self, selection: TokenImportance, row_index: Tensor, *, seed: int) -> None:
        self.selection, self.rows, self.device = selection, row_index, row_index.device
        rows = row_index.cpu()
        numbers, sizes = torch.unique_consecutive(rows, return_counts=True)
        if len(numbers.unique()) < len(numbers):
            raise ValueError(
                f"row_index: the tokens of rollout {int(numbers.mode().values)} lie apart; put them together"
            )
        self.ends: list[int] = sizes.cumsum(0).tolist()
        """Where each rollout ends, in tokens of the micro-batch."""
        self._is_one = selection.scope == "batch"
        self._longest = len(rows) if self._is_one else max(sizes.tolist(), default=0)
        group = torch.arange(len(sizes)).repeat_interleave(sizes)
        place = torch.arange(len(rows)) - (sizes.cumsum(0) - sizes)[group] + group * self._longest
        self._place = _to(torch.arange(len(rows)) if self._is_one else place, self.device)
        """[T] as of `best_of_groups`, of all rollouts."""
        self._noise = sampling_noise(row_index, seed) if selection.mode == "sample" else None
        self.settles = selection.settles

    def __len__(self) -> int:
        return len(self.rows)

    def num_kept(self, start: int, stop: int) -> int:
        """How many of the tokens from `start` to `stop` are kept: whole rollouts if it `settles`, else all of them."""
        return sum(num_kept(self.selection.ratio, size) for size in self._sizes(start, stop))

    def kept(self, start: int, stop: int, *, entropy: Tensor | None, divergence: Tensor | None) -> Tensor:
        """[stop - start] bool: which are kept; arguments as of `num_kept`, scores [stop - start] as of `token_scores`."""
        counts = [num_kept(self.selection.ratio, size) for size in self._sizes(start, stop)]
        return self._best(start, stop, counts, entropy, divergence)

    def likely(self, start: int, stop: int, most: int, *, entropy: Tensor | None, divergence: Tensor | None) -> Tensor:
        """[stop - start] bool, at most `most` of them: those most likely to be kept when more tokens behind are scored."""
        share = min(Fraction(str(self.selection.ratio)) * SPARE, Fraction(most, max(stop - start, 1)), Fraction(1))
        sizes = self._sizes(start, stop)
        counts = [int(share * size) for size in sizes]
        if self.settles:
            last_is_cut = stop not in self.ends
            final = [num_kept(self.selection.ratio, size) for size in sizes[: len(sizes) - last_is_cut]]
            final += [min(count, most - sum(final)) for count in counts[len(final) :]]
            counts = final if sum(final) <= most and min(final) >= 0 else counts
        return self._best(start, stop, counts, entropy, divergence)

    def _sizes(self, start: int, stop: int) -> list[int]:
        """Tokens between the two of each group from the first to the last that has any."""
        if self._is_one:
            return [stop - start]
        edges = [start, *(end for end in self.ends if start < end < stop), stop]
        return [right - left for left, right in itertools.pairwise(edges)]

    def _best(
        self, start: int, stop: int, counts: list[int], entropy: Tensor | None, divergence: Tensor | None
    ) -> Tensor:
        if stop == start:
            return torch.zeros(0, dtype=torch.bool, device=self.device)
        rows, place = self.rows[start:stop], self._place[start:stop]
        mask = torch.ones_like(rows, dtype=torch.bool)
        scores = token_scores(self.selection, mask=mask, row_index=rows, entropy=entropy, divergence=divergence)
        scores = comparable(scores)
        if self._noise is not None:
            scores = sampling_keys(scores, self._noise[start:stop])
        if start:
            place = place - bisect.bisect_right(self.ends, start) * self._longest
        num_kept = _to(torch.tensor(counts), self.device)
        return best_of_groups(scores, place, num_kept, self._longest, descending=self.selection.mode != "bottomk")


def _to(values: Tensor, device: torch.device) -> Tensor:
    """A copy that the host does not wait for."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values
