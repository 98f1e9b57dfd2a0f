"""The small numbers of a call on a CUDA device, each made in one launch, against the same in plain torch."""

import threading

import pytest
import torch
from tests.gpu import needs

from opd.losses.hopper.numbers_kernel import gradient_numbers, scale_weights
from opd.losses.hopper.row_kernel import CLUSTERS, FP16_SMALLEST_ROUNDING, NOISE_EVERY, GradientRows, gradient_unit
from opd.losses.hopper.scale_kernel import scale_in_place

needs.hopper()


@pytest.mark.parametrize("tokens", [1, 31, 4097])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_numbers_of_a_gradient_equal_those_in_float64(tokens, dtype, cluster):
    stats = torch.rand(tokens, 6, device="cuda")
    stats[:, 5] = (torch.rand(tokens, device="cuda") < 0.9).float()
    of_blocks = torch.rand(tokens, cluster, 3, device="cuda")
    weight = torch.randn(tokens, device="cuda")
    weight[::32] = 0.0
    rows = GradientRows(torch.empty(tokens, 500, dtype=dtype, device="cuda"), weight, 8.0, of_blocks)
    found = gradient_numbers(rows, stats, "reverse_kl", beta=0.0, temperature=0.7).double()
    unit = 8.0 * gradient_unit("reverse_kl", 0.0, 0.7)
    squared = weight[::NOISE_EVERY].double().square()
    sums = of_blocks[::NOISE_EVERY].double().sum(1)
    of_a_row = 500 * (FP16_SMALLEST_ROUNDING / unit) ** 2 if dtype == torch.float16 else 0.0
    expected = torch.stack(
        [
            squared @ sums[:, 0],
            squared @ sums[:, 2],
            (squared > 0).sum() * of_a_row,
            (of_blocks[:, :, 1].amax(1) * weight.abs()).amax().double() * unit,
            (stats[:, 5] == 0).sum().double(),
        ]
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("largest", [3e-6, 0.25, 1.0, 1.5, 700.0, 1e38])
def test_weights_become_fractions_of_a_power_of_two(largest):
    weights = torch.rand(5000, device="cuda") * largest
    weights[17] = -largest
    scaled, numbers = scale_weights(weights)
    unit, are_finite = numbers.tolist()
    assert are_finite
    assert unit / 2 <= largest < unit
    assert torch.equal(scaled * unit, weights)
    assert 0.5 <= float(scaled.abs().amax()) < 1.0


def test_weights_of_zero_stay_and_those_that_are_not_finite_are_told():
    scaled, numbers = scale_weights(torch.zeros(3, device="cuda"))
    assert (scaled.tolist(), numbers.tolist()) == ([0.0] * 3, [1.0, 1.0])
    for value in (float("nan"), float("inf"), -float("inf")):
        weights = torch.ones(2000, device="cuda")
        weights[1999] = value
        assert scale_weights(weights)[1].tolist()[1] == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("count", [0, 1, 1_000_003])
@pytest.mark.parametrize("factor", [1.0, -0.3])
def test_a_tensor_is_scaled_in_place_and_rounded_once(dtype, count, factor):
    values = torch.randn(count, device="cuda").to(dtype)
    expected = (values.float() * factor).to(dtype)
    scale_in_place(values, torch.tensor(factor, device="cuda"))
    assert torch.equal(values, expected)


def test_a_thread_that_has_asked_nothing_of_the_device_can_launch():
    """As autograd's does whose first work is the scaling of a gradient by a kernel that another thread has loaded."""
    values, factor = torch.ones(1000, device="cuda"), torch.tensor(2.0, device="cuda")
    scale_in_place(values, factor)
    torch.cuda.synchronize()
    thread = threading.Thread(target=scale_in_place, args=(values, factor))
    thread.start()
    thread.join()
    assert values.tolist() == [4.0] * 1000
