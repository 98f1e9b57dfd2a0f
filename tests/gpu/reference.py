"""Random heads, the float64 answer to them, and one run of `head_loss` on a CUDA device: shared by the tests of this folder."""

from typing import Any, NamedTuple

import torch
from tests.losses.cases import error
from torch import Tensor

from opd.losses import HiddenTargets, Loss, Output, Weights, head_loss

GRADIENT_BOUND = 3e-3  # relative error of both gradients against float64
VALUE_BOUND = 1e-3  # of per-token outputs
PARAMS: dict[str, dict[str, Any]] = {"reverse_kl": {}, "forward_kl": {}, "jsd": {"beta": 0.3}}
BF16, FP16 = torch.bfloat16, torch.float16


def make_heads(
    shape: tuple[int, int, int, int], dtype: torch.dtype = BF16, *, std: float = 2.0, seed: int = 0
) -> list[Tensor]:
    """Student hidden, student head, teacher hidden, teacher head with logits of the given standard deviation."""
    tokens, vocab, student_width, teacher_width = shape
    generator = torch.Generator("cuda").manual_seed(seed)

    def draw(rows: int, width: int, scale: float) -> Tensor:
        return (torch.randn(rows, width, device="cuda", generator=generator) * scale).to(dtype)

    return [
        draw(tokens, student_width, 1.0),
        draw(vocab, student_width, std / student_width**0.5),
        draw(tokens, teacher_width, 1.0),
        draw(vocab, teacher_width, std / teacher_width**0.5),
    ]


class Run(NamedTuple):
    output: Output
    grad_hidden: Tensor
    grad_weight: Tensor


def run(
    heads: list[Tensor], backend: str, kind: str = "reverse_kl", weights: Weights | None = None, **options: Any
) -> Run:
    """Run one form on fresh leaves, with the head's gradient in fp32; `backend` "exact" is the plain form in float64."""
    if backend == "exact":
        heads, backend = [each.double() for each in heads], "plain"
    hidden, weight = (each.detach().clone().requires_grad_() for each in heads[:2])
    if weight.dtype in (BF16, FP16):
        weight.grad_dtype = torch.float32
    tokens = len(hidden)
    ids = torch.arange(tokens, device="cuda") * 7 % options.get("valid_vocab", len(weight))
    options = {"targets": HiddenTargets(*heads[2:]), "watch": ("entropy", "teacher_entropy"), **options}
    loss = options.pop("loss", None) or Loss(kind, PARAMS[kind], options.pop("temperature", 1.0))
    weights = weights or Weights(divergence=torch.ones(tokens, device="cuda"))
    output = head_loss(hidden, weight, ids, weights, loss, backend=backend, **options)
    output.loss.backward()
    assert hidden.grad is not None
    assert weight.grad is not None
    return Run(output, hidden.grad, weight.grad)


def check(found: Run, exact: Run) -> None:
    """Compare gradients and statistics with float64."""
    bound = GRADIENT_BOUND * (
        2 if len(found.grad_hidden) == 1 else 1
    )  # over several rows, errors of rounding average out
    assert error(found.grad_hidden, exact.grad_hidden) < bound
    assert error(found.grad_weight, exact.grad_weight) < bound
    assert error(found.output.loss, exact.output.loss) < VALUE_BOUND
    for name, values in exact.output.statistics.items():
        if values.is_floating_point():
            assert error(found.output.statistics[name], values) < VALUE_BOUND, name
    assert not found.output.statistics["nonfinite"].any()
