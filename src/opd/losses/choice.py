"""What a form of the divergence asks of a choice of tokens that it can make while it scores them."""

from typing import Protocol

from torch import Tensor


class TokenChoice(Protocol):
    """See `opd.importance.micro.MicroBatchChoice`, whose members these are."""

    ends: list[int]

    @property
    def settles(self) -> bool: ...

    def __len__(self) -> int: ...

    def num_kept(self, start: int, stop: int) -> int: ...

    def kept(self, start: int, stop: int, *, entropy: Tensor | None, divergence: Tensor | None) -> Tensor: ...

    def likely(
        self, start: int, stop: int, most: int, *, entropy: Tensor | None, divergence: Tensor | None
    ) -> Tensor: ...
