"""Weights as fractions and the gradient's numbers, their CUDA source run on the CPU, against plain torch."""

import pytest
import torch
from tests.losses import kernels_on_cpu

from opd.losses.hopper.numbers_kernel import gradient_numbers, scale_weights
from opd.losses.hopper.row_kernel import FP16_SMALLEST_ROUNDING, NOISE_EVERY, NUM_STATS, GradientRows, gradient_unit


@pytest.fixture(autouse=True)
def _kernels(monkeypatch):
    pytest.importorskip("triton", reason="NOT TESTED HERE: the fused form's loop imports triton")
    kernels_on_cpu.install(monkeypatch)


@pytest.mark.parametrize("largest", [3e-6, 0.25, 1.0, 700.0])
def test_weights_become_fractions_of_a_power_of_two_and_lose_no_bit(largest):
    weights = torch.rand(300) * largest
    weights[17] = -largest
    scaled, numbers = scale_weights(weights)
    unit, are_finite = numbers.tolist()
    assert (are_finite, 0.5 * unit <= largest < unit) == (1.0, True)
    assert torch.equal(scaled * unit, weights)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_told(value):
    weights = torch.ones(300)
    weights[299] = value
    assert scale_weights(weights)[1].tolist()[1] == 0.0


def test_no_weight_but_zero_is_of_unit_one():
    assert scale_weights(torch.zeros(3))[1].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_gradients_numbers_are_those_of_its_rows(dtype):
    generator = torch.Generator().manual_seed(0)
    num_rows, blocks, vocab = 333, 3, 500
    of_blocks, stats = (torch.rand(num_rows, n, generator=generator) for n in (blocks * 3, NUM_STATS))
    weight = torch.randn(num_rows, generator=generator)
    weight[::32] = 0.0
    stats[7, 5] = stats[332, 5] = 0.0
    of_blocks = of_blocks.view(num_rows, blocks, 3)
    rows = GradientRows(torch.empty(num_rows, vocab, dtype=dtype), weight, 8.0, of_blocks)
    found = gradient_numbers(rows, stats, "reverse_kl", beta=0.0, temperature=0.7)
    unit = 8.0 * gradient_unit("reverse_kl", 0.0, 0.7)
    squared, sums = weight[::NOISE_EVERY].square(), of_blocks[::NOISE_EVERY].sum(1)
    below = vocab * (FP16_SMALLEST_ROUNDING / unit) ** 2 if dtype == torch.float16 else 0.0
    expected = [
        float(squared @ sums[:, 0]),
        float(squared @ sums[:, 2]),
        int((squared > 0).sum()) * below,
        float((of_blocks[:, :, 1].amax(1) * weight.abs()).amax()) * unit,
        2.0,
    ]
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-5, atol=0.0)
