"""A head of any number of entries, multiplied as one of a rounded number."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from opd.losses.padded_head import ENTRY_MULTIPLE, PaddedHead

COUNTS = (1, 63, 64, 65, 251)


class ProductSizes(TorchDispatchMode):
    """The dimensions of both factors of every `addmm` while the mode is active."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func.overloadpacket is torch.ops.aten.addmm:
            self.sizes |= {*args[1].shape, *args[2].shape}
        return func(*args, **(kwargs or {}))


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


@pytest.mark.parametrize("entries", COUNTS)
def test_products_are_those_of_the_head_over_a_rounded_number_of_entries(entries):
    whole, hidden = normal(entries + 9, 24), normal(8, 24)
    whole[entries:] = torch.nan  # of entries that do not count
    weight = whole[:entries]
    gradient = torch.zeros(8, PaddedHead(weight).padded).double()
    gradient[:, :entries] = normal(8, entries)
    with ProductSizes() as products:
        head = PaddedHead(weight)
        logits = head.logits(hidden, torch.empty_like(gradient))
        of_hidden = head.hidden_gradient(gradient, torch.full((8, 24), torch.nan, dtype=torch.float64))
    torch.testing.assert_close(logits[:, :entries], hidden @ weight.T)
    assert torch.isneginf(logits[:, entries:]).all()
    torch.testing.assert_close(of_hidden, gradient[:, :entries] @ weight)
    assert products.sizes
    assert all(size % ENTRY_MULTIPLE == 0 for size in products.sizes - {8, 24})


def test_the_head_is_not_copied():
    weight = normal(1271, 24)
    head = PaddedHead(weight)
    weight[0] = 0.0
    logits = head.logits(normal(5, 24), torch.empty(5, head.padded, dtype=torch.float64))
    assert torch.count_nonzero(logits[:, 0]) == 0
