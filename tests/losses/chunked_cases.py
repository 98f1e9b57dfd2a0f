"""Random heads and hidden states for the chunked divergence, its call, and the float64 reference under plain autograd."""

from typing import NamedTuple

import torch
from torch import Tensor

from opd.losses import chunked_divergence, divergence

NUM_TOKENS, VOCAB, STUDENT_DIM, TEACHER_DIM = 41, 1271, 24, 40


class Case(NamedTuple):
    student_hidden: Tensor
    student_weight: Tensor
    teacher_hidden: Tensor
    teacher_weight: Tensor
    weights: Tensor
    token_ids: Tensor

    def heads(self):
        return self.student_hidden, self.student_weight, self.teacher_hidden, self.teacher_weight


def make_case(num_tokens=NUM_TOKENS, student_vocab=VOCAB, teacher_vocab=VOCAB, scale=1.0, dtype=torch.float32, seed=0):
    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, min(student_vocab, teacher_vocab), (num_tokens,), generator=generator)
    return Case(
        (scale * normal(num_tokens, STUDENT_DIM)).to(dtype).requires_grad_(),
        (STUDENT_DIM**-0.5 * normal(student_vocab, STUDENT_DIM)).to(dtype).requires_grad_(),
        (scale * normal(num_tokens, TEACHER_DIM)).to(dtype),
        (TEACHER_DIM**-0.5 * normal(teacher_vocab, TEACHER_DIM)).to(dtype),
        torch.rand(num_tokens, generator=generator),
        ids,
    )


def run(case, kind, *, beta=0.3, temperature=1.0, chunk_size=7, **options):
    return chunked_divergence(
        *case.heads(),
        kind,
        token_weights=case.weights,
        beta=beta,
        temperature=temperature,
        chunk_size=chunk_size,
        **options,
    )


def reference(case, kind, *, beta=0.3, temperature=1.0, vocab=None):
    """Weighted sum, per-token values and both gradients of the naive loss: float64 logits, autograd."""
    hidden, weight = (x.detach().double().requires_grad_() for x in case.heads()[:2])
    teacher_logits = case.teacher_hidden.double() @ case.teacher_weight[:vocab].double().T
    values = divergence(hidden @ weight[:vocab].T, teacher_logits, kind, beta=beta, temperature=temperature)
    loss = (values * case.weights.double()).sum()
    loss.backward()
    return loss.detach(), values.detach(), hidden.grad, weight.grad


def relative_error(ours, expected):
    return ((ours.detach().double() - expected).norm() / expected.norm()).item()
