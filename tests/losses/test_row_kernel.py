"""The fused divergence's gate: the expected error of its gradient (the kernel itself: tests/gpu/test_head_loss.py)."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="NOT TESTED HERE: the fused kernels need triton")
pytest.importorskip("cuda.bindings.nvrtc", reason="NOT TESTED HERE: the fused kernels need a CUDA run-time compiler")

from opd.losses.hopper.row_kernel import NOISE_EVERY, expected_error, gradient_numbers  # needs both modules


def error_of(weights: Tensor) -> float:
    """Return the expected error of rows whose gradients have a norm of 1 and a noise of 1e-3."""
    of_blocks = torch.zeros(len(weights), 2, 3)
    of_blocks[:, 0, 0], of_blocks[:, 1, 1], of_blocks[:, 0, 2] = 1.0, 0.5, 1e-6
    return expected_error(gradient_numbers(of_blocks, weights))


def test_the_expected_error_is_that_of_sampled_rows_and_unknown_without_one():
    weights = torch.ones(33)
    assert error_of(weights) == pytest.approx((1e-6 + 1.66e-3**2) ** 0.5, rel=1e-2)
    weights[::NOISE_EVERY] = 0.0
    assert error_of(weights) == float("inf")
    assert error_of(0 * weights) == 0.0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_weight_that_is_not_finite_is_refused(value):
    weights = torch.ones(33)
    weights[5] = value
    with pytest.raises(ValueError, match="must not count has weight 0"):
        error_of(weights)
