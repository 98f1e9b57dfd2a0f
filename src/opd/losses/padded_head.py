"""An output head whose matrix products run over a rounded number of entries, whatever number of them counts.

cuBLAS multiplies an odd number of 16-bit columns about three times slower than a rounded one, and tokenizers of real
models have odd numbers of entries (Qwen3 151,669, Qwen2.5 151,665), whether or not their heads are padded behind them.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

ENTRY_MULTIPLE = 64  # 128 bytes of 16-bit logits, so that padded rows start on 128 bytes


def padded_entries(entries: int) -> int:
    """Columns of logits and of their gradient for so many entries."""
    return -(-entries // ENTRY_MULTIPLE) * ENTRY_MULTIPLE


class PaddedHead:
    """The entries that count as a view of the head up to the last whole multiple, and a small copy of the rest that zeros fill up.

    What the head holds behind them is never read: a value there that is not finite would reach every row of a product.

    Args:
        head: [V, d], only the entries that count.
    """

    def __init__(self, head: Tensor) -> None:
        self.entries, self.width = head.shape
        self.dtype = head.dtype
        self.padded = padded_entries(self.entries)
        self._whole = self.entries - self.entries % ENTRY_MULTIPLE
        self._head = head[: self._whole]
        self._rest = head.new_zeros(self.padded - self._whole, self.width)
        self._rest[: self.entries - self._whole] = head[self._whole :]

    def _parts(self) -> Iterator[tuple[slice, Tensor]]:
        """(columns, rows of the head) of each part that is not empty."""
        for columns, rows in ((slice(0, self._whole), self._head), (slice(self._whole, None), self._rest)):
            if len(rows):
                yield columns, rows

    def logits(self, hidden: Tensor, out: Tensor) -> Tensor:
        """Write hidden [n, d] @ head.T into `out` [n, padded_entries(V)], with minus infinity after the V entries."""
        for columns, rows in self._parts():
            accumulate(out[:, columns], hidden, rows.T, beta=0.0)
        out[:, self.entries :] = -torch.inf
        return out

    def hidden_gradient(self, gradient: Tensor, out: Tensor, alpha: float = 1.0) -> Tensor:
        """Write alpha gradient @ head into `out` [n, d] of the gradient's dtype or wider.

        Args:
            gradient: [n, padded_entries(V)], finite in the columns behind V too.
        """
        for i, (columns, rows) in enumerate(self._parts()):
            accumulate(out, gradient[:, columns], rows, beta=float(i > 0), alpha=alpha)
        return out


def accumulate(out: Tensor, a: Tensor, b: Tensor, *, beta: float = 1.0, alpha: float = 1.0) -> None:
    """out = beta out + alpha a @ b, summed in out's dtype: CUDA multiplies two 16-bit factors without widening them."""
    if a.dtype == out.dtype:
        torch.addmm(out, a, b, beta=beta, alpha=alpha, out=out)
    else:
        torch.addmm(out, a, b, out_dtype=out.dtype, beta=beta, alpha=alpha, out=out)


def add_rows(out: Tensor, places: Tensor, rows: Tensor) -> None:
    """Add rows [n, d] to the rows of `out` [V, d] at some places, which may repeat, in a fixed order."""
    if out.device.type == "cuda":  # sorts the places first, where index_add_ adds in any order
        out.index_put_((places,), rows.to(out.dtype), accumulate=True)
    else:
        out.index_add_(0, places, rows.to(out.dtype))
