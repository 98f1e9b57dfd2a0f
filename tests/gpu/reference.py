"""Random heads, the float64 answer to them, and one run of the fused divergence: shared by the tests of this folder."""

import torch
from torch import Tensor

from opd.losses import DivergenceOutput
from opd.losses.divergence import divergence
from opd.losses.fused import head_divergence

GRADIENT_BOUND = 3e-3  # relative error of both gradients against float64
VALUE_BOUND = 1e-3  # of per-token outputs
KINDS = ("reverse_kl", "forward_kl", "jsd")
BF16, FP16 = torch.bfloat16, torch.float16
# tokens, vocabulary, student width, teacher width: nothing a multiple of a tile, a cluster or a vector
SHAPES = ((41, 1271, 64, 128), (1, 257, 128, 64), (300, 5003, 136, 72), (131, 33001, 256, 512))


def make_heads(
    shape: tuple[int, int, int, int], student: torch.dtype, teacher: torch.dtype, *, std: float = 2.0, seed: int = 0
) -> list[Tensor]:
    """Student hidden, student head, teacher hidden, teacher head with logits of the given standard deviation."""
    tokens, vocab, student_width, teacher_width = shape
    generator = torch.Generator("cuda").manual_seed(seed)

    def draw(rows: int, width: int, scale: float, dtype: torch.dtype) -> Tensor:
        return (torch.randn(rows, width, device="cuda", generator=generator) * scale).to(dtype)

    return [
        draw(tokens, student_width, 1.0, student),
        draw(vocab, student_width, std / student_width**0.5, student),
        draw(tokens, teacher_width, 1.0, teacher),
        draw(vocab, teacher_width, std / teacher_width**0.5, teacher),
    ]


# Rows of the plain path, GiB of the fused one.
SIZES = {"chunk_size": 512, "workspace_gib": 1.1}
BETA = 0.5


def float64_reference(heads: list[Tensor], kind: str, weights: Tensor, valid: int, **options) -> dict[str, Tensor]:
    """Loss, per-token divergence, log-probabilities and both gradients by plain autograd in float64."""
    hidden, weight, teacher_hidden, teacher_weight = (tensor.double() for tensor in heads)
    hidden.requires_grad_()
    weight.requires_grad_()
    student_logits = hidden @ weight[:valid].T
    teacher_logits = teacher_hidden @ teacher_weight[:valid].T
    value = divergence(student_logits, teacher_logits, kind, **{"beta": BETA, **options})
    (value * weights.double()).sum().backward()
    temperature = options.get("temperature", 1.0)
    return {
        "divergence": value.detach(),
        "log_s": (student_logits.detach() / temperature).log_softmax(-1),
        "log_t": (teacher_logits / temperature).log_softmax(-1),
        "grad_hidden": hidden.grad,
        "grad_weight": weight.grad,
    }


def run_fused(heads: list[Tensor], kind: str, weights: Tensor, **options) -> tuple[DivergenceOutput, Tensor, Tensor]:
    """Output and both gradients, in fp32: what autograd would round to the inputs' dtype is not part of the bound."""
    hidden, weight, teacher_hidden, teacher_weight = heads
    hidden = hidden.float().requires_grad_()
    weight = weight.clone().requires_grad_()
    weight.grad_dtype = torch.float32
    options = {"token_weights": weights, "backend": "fused", "beta": BETA, **SIZES, **options}
    output = head_divergence(hidden, weight, teacher_hidden, teacher_weight, kind, **options)
    output.loss_sum.backward()
    return output, hidden.grad, weight.grad


def relative_error(value: Tensor, reference: Tensor) -> float:
    value, reference = value.detach().double(), reference.detach()
    return float((value - reference).norm() / reference.norm())


def weights_of(name: str, tokens: int) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(5)
    drawn = torch.rand(tokens, device="cuda", generator=generator)
    if name == "ones":
        return torch.ones(tokens, device="cuda")
    if name == "mask":
        return (drawn < 0.5).float().index_fill(0, torch.tensor([0], device="cuda"), 1.0)
    return (drawn + 0.1) * 3e-6  # rewards times importance over a global count
