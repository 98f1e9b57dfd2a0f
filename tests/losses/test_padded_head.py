"""A head of any number of entries, multiplied as one of a rounded number."""

import pytest
import torch
from tests.losses.products import ProductSizes

from opd.losses.padded_head import ENTRY_MULTIPLE, PaddedHead, padded_entries

COUNTS = (1, 7, 63, 64, 65, 101, 251, 1271)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def padded_gradient(entries: int) -> torch.Tensor:
    gradient = torch.zeros(5, padded_entries(entries), dtype=torch.float64)
    gradient[:, :entries] = normal(5, entries)
    return gradient


@pytest.mark.parametrize("entries", COUNTS)
def test_products_are_those_of_the_head_as_it_is(entries):
    weight, hidden, gradient = normal(entries, 24), normal(5, 24), padded_gradient(entries)
    head = PaddedHead(weight)
    logits = head.logits(hidden, torch.empty(5, padded_entries(entries), dtype=torch.float64))
    torch.testing.assert_close(logits[:, :entries], hidden @ weight.T)
    assert torch.isneginf(logits[:, entries:]).all()
    out = torch.full((5, 24), torch.nan, dtype=torch.float64)
    torch.testing.assert_close(head.hidden_gradient(gradient, out), gradient[:, :entries] @ weight)


@pytest.mark.parametrize("entries", COUNTS)
def test_every_product_runs_over_a_rounded_number_of_entries(entries):
    head = PaddedHead(normal(entries, 24))
    with ProductSizes() as products:
        head.logits(normal(8, 24), torch.empty(8, padded_entries(entries), dtype=torch.float64))
        head.hidden_gradient(torch.zeros(8, padded_entries(entries), dtype=torch.float64), normal(8, 24))
    assert all(size % ENTRY_MULTIPLE == 0 for size in products.sizes - {8, 24})


def test_what_a_head_holds_behind_its_entries_is_never_read():
    weight = normal(128, 24)
    weight[101:] = torch.nan
    head = PaddedHead(weight[:101])
    logits = head.logits(normal(5, 24), torch.empty(5, padded_entries(101), dtype=torch.float64))
    assert torch.isfinite(logits[:, :101]).all()
    assert torch.isfinite(head.hidden_gradient(padded_gradient(101), normal(5, 24))).all()


def test_the_head_is_not_copied():
    weight = normal(1271, 24)
    hidden, head = normal(5, 24), PaddedHead(weight)
    weight[0] = 0.0
    assert (
        torch.count_nonzero(head.logits(hidden, torch.empty(5, padded_entries(1271), dtype=torch.float64))[:, 0]) == 0
    )
