"""Entropies on a CUDA device, by the kernel that reads each row of logits once, against float64."""

import pytest
import torch
from tests.gpu import needs
from tests.gpu.reference import BF16, FP16, VALUE_BOUND, make_heads, relative_error

from opd.losses.entropy import next_token_entropy

needs.devices(1, "the kernel of entropies needs a CUDA device")


@pytest.mark.parametrize("dtype", [BF16, FP16, torch.float32])
@pytest.mark.parametrize(("vocab", "std"), [(257, 2.0), (5003, 8.0), (33001, 2.0)])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_entropies_equal_those_in_float64_whatever_the_chunks(dtype, vocab, std, temperature):
    hidden, weight, _, _ = make_heads((131, vocab, 128, 64), dtype, dtype, std=std)
    hidden[:7] *= 4.0  # some nearly certain
    valid = vocab - 2
    weight[valid:] = float("nan")  # never trained, never read
    found = next_token_entropy(hidden, weight, temperature=temperature, valid_vocab=valid, chunk_size=5)
    log_p = torch.log_softmax(hidden.to(dtype).double() @ weight[:valid].double().T / temperature, dim=-1)
    assert relative_error(found, -(log_p.exp() * log_p).sum(-1)) < VALUE_BOUND


def test_a_row_that_is_not_finite_has_no_entropy():
    hidden, weight, _, _ = make_heads((9, 5003, 64, 64), BF16, BF16)
    hidden[2, 3], hidden[5, 0] = float("nan"), float("inf")
    found = next_token_entropy(hidden, weight, temperature=1.0, valid_vocab=5003, chunk_size=1)
    assert found.isnan().nonzero().flatten().tolist() == [2, 5]
