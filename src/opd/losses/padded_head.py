"""An output head whose matrix products run over a rounded number of entries, and the two gradients that they make.

cuBLAS multiplies an odd number of 16-bit columns about three times as slowly as a rounded number. Tokenizers of real
models have odd numbers of entries (Qwen3 151,669).
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

ENTRY_MULTIPLE = 64  # 128 bytes of 16-bit logits, so that padded rows start on 128 bytes


class PaddedHead:
    """A view of the head's V entries that count up to the last whole multiple, and a copy of the rest with zeros after."""

    def __init__(self, head: Tensor) -> None:
        self.entries, self.width = head.shape
        self.dtype = head.dtype
        self.padded = -(-self.entries // ENTRY_MULTIPLE) * ENTRY_MULTIPLE
        self._whole = self.entries - self.entries % ENTRY_MULTIPLE
        self._head = head[: self._whole]
        self._rest = head.new_zeros(self.padded - self._whole, self.width)
        self._rest[: self.entries - self._whole] = head[self._whole :]

    def _parts(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield (columns, rows of the head) of each part that is not empty."""
        for columns, rows in ((slice(0, self._whole), self._head), (slice(self._whole, None), self._rest)):
            if len(rows):
                yield columns, rows

    def logits(self, hidden: Tensor, out: Tensor) -> Tensor:
        """Write hidden [n, d] @ head.T into `out` [n, padded], with minus infinity after the V entries."""
        for columns, rows in self._parts():
            accumulate(out[:, columns], hidden, rows.T, beta=0.0)
        out[:, self.entries :] = -torch.inf
        return out

    def hidden_gradient(self, gradient: Tensor, out: Tensor, alpha: float = 1.0) -> Tensor:
        """Write alpha gradient [n, padded] @ head into `out` [n, d]; columns after the V entries must be finite."""
        for i, (columns, rows) in enumerate(self._parts()):
            accumulate(out, gradient[:, columns], rows, beta=float(i > 0), alpha=alpha)
        return out


class Kept(NamedTuple):
    """Entries of the logits' gradient that are kept in full precision: their columns [n, m] and values [n, m].

    One large entry of a token can carry most of its gradient: the sampled token's, or the largest event's. Rounded to 16
    bits it would set the error of both gradients.
    """

    columns: Tensor
    values: Tensor


class Trained(NamedTuple):
    """The inputs that need a gradient."""

    hidden: bool
    weight: bool


class Gradients:
    """The gradients by hidden states [T, d] and whole head [V, d], to which each group of n tokens adds its part.

    `head` has the entries that count, `dtype` is the sums' and the head's gradient's.
    """

    def __init__(self, hidden: Tensor, weight: Tensor, head: PaddedHead, dtype: torch.dtype, trained: Trained) -> None:
        self._states, self._weight, self._head, self._dtype = hidden, weight, head, dtype
        self.hidden = torch.empty_like(hidden) if trained.hidden else None
        # The product that writes it runs over a rounded number of entries too.
        make, rows = weight.new_empty if len(hidden) else weight.new_zeros, max(len(weight), head.padded)
        self.weight = make(rows, head.width, dtype=dtype) if trained.weight else None

    def add_hidden(self, start: int, gradient: Tensor, alpha: float = 1.0, kept: Kept | None = None) -> None:
        """Write the gradient by the hidden states from `start` on, from the logits' gradient [n, padded] times alpha."""
        if self.hidden is None:
            return
        product = self._states.new_empty(len(gradient), self._head.width, dtype=self._dtype)
        self._head.hidden_gradient(gradient, product, alpha)
        for columns, values in _entries(kept):
            product.addcmul_(self._weight[columns].to(self._dtype), values.unsqueeze(1))
        self.hidden[start : start + len(gradient)] = product

    def add_weight(self, start: int, gradient: Tensor, alpha: float = 1.0, kept: Kept | None = None) -> None:
        """Add to the gradient by the head; the first group overwrites what the storage held."""
        if self.weight is None:
            return
        states = self._states[start : start + len(gradient)]
        out = self.weight[: self._head.padded]
        accumulate(out, gradient.T, states.to(gradient.dtype), beta=float(start > 0), alpha=alpha)
        for columns, values in _entries(kept):
            rows = values.unsqueeze(1) * states
            if rows.device.type == "cuda":  # sorts the places first, where index_add_ adds in any order
                self.weight.index_put_((columns,), rows.to(self.weight.dtype), accumulate=True)
            else:
                self.weight.index_add_(0, columns, rows.to(self.weight.dtype))

    def whole(self) -> tuple[Tensor | None, Tensor | None]:
        """Return both gradients; of entries that do not count it is 0."""
        if self.weight is None:
            return self.hidden, None
        self.weight[self._head.entries :] = 0
        return self.hidden, self.weight[: len(self._weight)]


def _entries(kept: Kept | None) -> list[tuple[Tensor, Tensor]]:
    """Return (columns [n], values [n]) of each entry of a token."""
    return [] if kept is None else list(zip(kept.columns.unbind(1), kept.values.unbind(1), strict=True))


def accumulate(out: Tensor, a: Tensor, b: Tensor, *, beta: float = 1.0, alpha: float = 1.0) -> None:
    """Compute out = beta out + alpha a @ b in out's dtype: CUDA multiplies two 16-bit factors without widening them."""
    if a.dtype == out.dtype:
        torch.addmm(out, a, b, beta=beta, alpha=alpha, out=out)
    else:
        torch.addmm(out, a, b, out_dtype=out.dtype, beta=beta, alpha=alpha, out=out)
