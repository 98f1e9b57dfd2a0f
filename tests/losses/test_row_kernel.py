"""The fused divergence, its CUDA sources run on the CPU, against float64."""

import pytest
import torch
from tests.losses import kernels_on_cpu
from torch import Tensor

from opd.losses import HiddenTargets, Loss, Output, Weights, head_loss
from opd.losses.hopper.row_kernel import KINDS

pytest.importorskip("triton", reason="NOT TESTED HERE: the fused form's loop imports triton")

TOKENS, VOCAB, WIDTHS = 11, 1271, (24, 40)
BETA = 0.3
BOUND = 3e-3  # of both gradients, as on the device


def make(dtype: torch.dtype, tokens: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(2)

    def normal(rows: int, width: int, scale: float) -> Tensor:
        return (torch.randn(rows, width, generator=generator) * scale).to(dtype)

    return {
        "student_hidden": normal(tokens, WIDTHS[0], 1.0),
        "student_weight": normal(VOCAB, WIDTHS[0], 2.0 / WIDTHS[0] ** 0.5),
        "teacher_hidden": normal(tokens, WIDTHS[1], 1.0),
        "teacher_weight": normal(VOCAB, WIDTHS[1], 2.0 / WIDTHS[1] ** 0.5),
        "token_weights": torch.rand(tokens, generator=generator),
        "token_ids": torch.randint(-2, VOCAB + 3, (tokens,), generator=generator),
    }


def reference(inputs: dict[str, Tensor], kind: str, temperature: float) -> tuple[Output, Tensor, Tensor]:
    wide = [value.double() if value.is_floating_point() else value for value in inputs.values()]
    hidden, weight, teacher_hidden, teacher_weight, weights, ids = wide
    hidden.requires_grad_()
    weight.requires_grad_()
    loss = Loss(kind, {"beta": BETA} if kind == "jsd" else {}, temperature)
    output = head_loss(
        hidden, weight, ids, Weights(divergence=weights), loss, targets=HiddenTargets(teacher_hidden, teacher_weight),
        watch=("entropy", "teacher_entropy"),
    )  # fmt: skip
    output.loss.backward()
    return output, hidden.grad, weight.grad


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


def call(vocab: int, kind: str, temperature: float, precision: str, workspace: int):
    from opd.losses.hopper.run import Call

    return Call(
        kind=kind, beta=BETA, temperature=temperature, vocab=vocab, workspace_bytes=workspace, precision=precision,
        max_expected_error=1.0,
    )  # fmt: skip


def check(stats: Tensor, expected, own: slice) -> None:
    for column, name in enumerate(("divergence", "entropy", "teacher_entropy", "log_prob", "teacher_log_prob")):
        exact = expected.statistics[name][own]
        counted = torch.isfinite(exact)
        torch.testing.assert_close(stats[counted, column].double(), exact[counted], rtol=2e-3, atol=2e-4, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("precision", "dtype"), [("fp16", torch.bfloat16), ("fp32", torch.float16)])
def test_the_whole_row_kernel_gives_the_divergence_and_both_gradients(monkeypatch, kind, precision, dtype):
    from opd.losses.hopper.run import Inputs, run

    kernels_on_cpu.install(monkeypatch)
    inputs = make(dtype, TOKENS)
    expected, grad_hidden, grad_weight = reference(inputs, kind, 0.8)
    result = run(Inputs(*inputs.values()), call(VOCAB, kind, 0.8, precision, 2**30), need_hidden=True, need_weight=True)
    check(result.stats, expected, slice(None))
    assert relative(result.grad_weight, grad_weight) < BOUND
    assert relative(result.grad_hidden, grad_hidden) < BOUND + 2 * (dtype == torch.bfloat16) * 2**-9
