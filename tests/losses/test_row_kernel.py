"""The fused divergence, its CUDA source run on the CPU, against float64; and the gradient's expected error."""

import pytest
import torch
from tests.losses import kernels_on_cpu
from tests.losses.cases import draw, error, expected, make
from torch import Tensor

from opd.head_form import FUSED_KINDS
from opd.losses import HiddenTargets, Loss, Weights
from opd.losses.terms import Request

pytest.importorskip("triton", reason="NOT TESTED HERE: the fused kernels need triton")
pytest.importorskip("cuda.bindings.nvrtc", reason="NOT TESTED HERE: the fused kernels need a CUDA run-time compiler")

from opd.losses.hopper.row_kernel import NOISE_EVERY, expected_error, gradient_numbers  # needs both modules

BOUND = 3e-3  # of both gradients, as on the device


@pytest.mark.slow
@pytest.mark.parametrize("kind", FUSED_KINDS)
@pytest.mark.parametrize("is_wide", [False, True])
def test_the_whole_row_kernel_gives_the_divergence_and_both_gradients(monkeypatch, kind, is_wide):
    from opd.losses.hopper.loop import run

    kernels_on_cpu.install(monkeypatch)
    case = make(tokens=11, scale=2.0, dtype=torch.bfloat16)
    weights = Weights(divergence=draw(11, 1).float())
    exact = expected(case, kind, weights, temperature=0.8)
    loss, targets = Loss(kind, {"beta": 0.3} if kind == "jsd" else {}, 0.8), HiddenTargets(*case.targets)
    request = Request(ids=case.ids, weights=weights, loss=loss, targets=targets, vocab=333)
    options = {"is_wide": is_wide, "need_hidden": True, "need_weight": True}
    ours, _ = run(case.hidden.detach(), case.weight, request, **options, max_expected_error=1.0)
    assert ours.grad_hidden is not None
    assert ours.grad_weight is not None
    assert error(ours.grad_weight, exact.grad[1]) < BOUND
    assert error(ours.grad_hidden, exact.grad[0]) < BOUND + 2 * 2**-9
    for name, values in exact.statistics.items():
        torch.testing.assert_close(ours.statistics[name].double(), values, rtol=2e-3, atol=2e-4, msg=name)


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
