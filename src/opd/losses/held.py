"""Which token has which of a few places, while tokens come and go; the host waits for nothing."""

import torch
from torch import Tensor


def positions(flags: Tensor, count: int) -> Tensor:
    """[count] int64, where flags [n] bool are set, ascending, -1 behind the last; the host waits for nothing."""
    if not count:  # nothing to launch
        return torch.empty(0, dtype=torch.int64, device=flags.device)
    return torch.nonzero_static(flags, size=count).squeeze(1)


class HeldTokens:
    """Tokens by number, each in a slot of its own or in none.

    Args:
        num_slots: how many can be held at once.
        num_tokens: numbers run from 0 to this.
    """

    def __init__(self, num_slots: int, num_tokens: int, device: torch.device) -> None:
        self.num_slots, self.num_tokens = num_slots, num_tokens
        # The last entry takes what has no slot.
        self._slots = torch.full((num_slots + 1,), -1, dtype=torch.int64, device=device)

    @property
    def token_of_slot(self) -> Tensor:
        """[num_slots], -1 where none is."""
        return self._slots[:-1]

    def update(self, wanted: Tensor, start: int) -> Tensor:
        """Give up what is not wanted any more, and hold of the tokens from `start` on as many wanted ones as there is room for.

        Args:
            wanted: [stop] bool, of the tokens from 0 on.

        Returns:
            [stop - start] int32, the slot of each token from `start` on, or -1.
        """
        held, is_new = self.token_of_slot, wanted[start:]
        if start and self.num_slots:
            held.masked_fill_(~wanted[held.clamp(min=0)], -1)  # a free slot stays free
        free = self.free_slots(len(is_new))
        slots = torch.where(is_new, free[is_new.cumsum(0) - 1], -1)  # the last of them for a token before the first one
        self.put(slots, torch.arange(start, len(wanted), device=wanted.device))
        return slots.int()

    def put(self, slots: Tensor, tokens: Tensor) -> None:
        """Hold tokens in free slots, those of a negative slot left out; both [n]."""
        self._slots.scatter_(0, torch.where(slots >= 0, slots, self.num_slots), tokens)

    def free_slots(self, count: int) -> Tensor:
        """[count] int64, free slots in ascending order, -1 behind the last one."""
        return positions(self.token_of_slot < 0, count)

    def num_held(self) -> Tensor:
        """Scalar on the device."""
        return (self.token_of_slot >= 0).sum()

    def missing(self, wanted: Tensor, count: int) -> Tensor:
        """[count] int64: the wanted tokens [num_tokens] that are not held, ascending, -1 behind the last one."""
        held = torch.zeros(self.num_tokens + 1, dtype=torch.bool, device=wanted.device)
        places = torch.where(self.token_of_slot >= 0, self.token_of_slot, self.num_tokens)
        held.index_fill_(0, places, True)
        return positions(wanted & ~held[:-1], count)
