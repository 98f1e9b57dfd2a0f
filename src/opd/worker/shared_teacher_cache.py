"""The teacher's hidden states among ranks that share sequences: each is cached where it was computed, and goes from there
to the rank whose student reads its token.

Teacher and student cut a batch into micro-batches of their own, so a token need not lie on the same rank in both.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, distributed

from opd.batch import LossPositions
from opd.worker.teacher_cache import Fetch
from opd.worker.ulysses import Slice


class Holders:
    """Which rank of the group computed the hidden states of which trained tokens, known on every rank of it."""

    def __init__(self) -> None:
        self._counts: dict[int, list[int]] = {}

    def note(self, rows: Sequence[int], found: LossPositions, piece: Slice) -> list[int]:
        """Remember where a micro-batch of the teacher's lies; returns how many tokens of each row lie on this rank.

        Args:
            rows: [B] numbers of its rows. found: trained tokens of all of them, of all ranks.
        """
        place = found.row * piece.size + piece.holders(found.flat_index)
        counts = torch.bincount(place, minlength=len(rows) * piece.size).view(len(rows), piece.size).tolist()
        self._counts.update(zip(rows, counts, strict=True))
        return [of_rank[piece.rank] for of_rank in counts]

    def of(self, rows: Sequence[int]) -> Tensor:
        """[N] int64 (host): the rank that holds each trained token of these rows, in their order."""
        ranks = [torch.arange(len(self._counts[row])) for row in rows]
        counts = [torch.tensor(self._counts[row]) for row in rows]
        return torch.cat([rank.repeat_interleave(count) for rank, count in zip(ranks, counts, strict=True)])

    def keep(self, row: int, kept: Tensor) -> tuple[Tensor, ...]:
        """Of a row's trained tokens [n] only the `kept` ones from now on; returns `kept` of each rank's tokens."""
        parts: tuple[Tensor, ...] = kept.split(self._counts[row])
        self._counts[row] = [int(part.sum()) for part in parts]
        return parts


class Regrouped(Fetch):
    """Hidden states on their way to the rank that reads them; `ready` is a collective call of the group.

    Args:
        cached: this rank's part, in the order of the tokens.
        held, needed: [N] int64 (host), of each trained token of the micro-batch: the rank that has its hidden state, and
            the rank that reads it.
    """

    def __init__(self, cached: Fetch, held: Tensor, needed: Tensor, piece: Slice) -> None:
        self._cached, self._piece = cached, piece
        self._is_moved = not torch.equal(held, needed)  # the same answer on every rank
        self._sent = torch.bincount(needed[held == piece.rank], minlength=piece.size).tolist()
        wanted = held[needed == piece.rank]
        self._received = torch.bincount(wanted, minlength=piece.size).tolist()
        self._order = torch.argsort(wanted, stable=True)

    def ready(self) -> Tensor:
        """[N_own, d] in the order of this rank's tokens."""
        cached = self._cached.ready()
        if not self._is_moved:
            return cached
        received = cached.new_empty(len(self._order), cached.shape[1])
        # A rank's tokens ascend, and so do the ranks that read them: what it has is in the order of its receivers.
        distributed.all_to_all_single(received, cached, self._received, self._sent, group=self._piece.group)
        ordered = torch.empty_like(received)
        ordered[self._order.to(received.device)] = received
        return ordered
