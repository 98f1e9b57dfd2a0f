"""The divergence from hidden states: both output heads and the loss, chunk by chunk, with the gradient made in the forward."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from opd.losses.divergence import COMPARISONS, DIVERGENCE_KINDS, DivergenceKind, check_divergence, compute_dtype
from opd.losses.output import DivergenceOutput
from opd.losses.policy import PolicyTerm
from opd.losses.rows import row_statistics


def chunked_divergence(
    student_hidden: Tensor,
    student_weight: Tensor,
    teacher_hidden: Tensor,
    teacher_weight: Tensor,
    kind: DivergenceKind,
    *,
    token_weights: Tensor,
    beta: float,
    temperature: float,
    chunk_size: int,
    valid_vocab: int | None = None,
    token_ids: Tensor | None = None,
    top_k: int = 0,
    policy: PolicyTerm | None = None,
) -> DivergenceOutput:
    """Weighted sum of per-token divergences of `hidden @ weight.T` on both sides, over the full vocabulary.

    Never more than `chunk_size` rows of logits exist, on either side, and none outlives the call: the gradients of
    both student inputs are made in the forward (d loss / d hidden [T, d_S] in the hidden states' dtype,
    d loss / d weight [V_S, d_S] in float32) and only scaled in the backward. Formulas: `divergence` and
    `row_statistics`. Everything is computed in float32 (float64 if any hidden states or weight are float64), also
    under autocast. The graph is there for every T, T = 0 included, so that an empty rank runs an equal backward.

    Args:
        student_hidden: [T, d_S] hidden states after the final norm, at the positions that predict the tokens.
        student_weight: [V_S, d_S] output head without bias.
        teacher_hidden: [T, d_T]; receives no gradient.
        teacher_weight: [V_T, d_T]; receives no gradient.
        kind: `reverse_kl`, `forward_kl`, `jsd`, or one of `COMPARISONS`.
        token_weights: [T], no gradient; a token of weight 0 adds nothing to loss or gradient and still gets its
            per-token outputs.
        beta: weight of the teacher in the mixture of `jsd`; ignored by the other kinds.
        temperature: divides both logits.
        chunk_size: tokens a chunk.
        valid_vocab: number of leading vocabulary entries that count, the tokenizer's; padded entries behind them take
            part in no softmax and get gradient exactly 0. None: all entries, and both sides must have as many.
        token_ids: [T] int64, the tokens whose log-probabilities to return; an id that does not count gets -inf.
        top_k: the teacher's tokens that `topk_reverse_kl` looks at one by one.
        policy: of the same tokens, which `token_ids` then names: its weighted losses are added to the sum, and its gradient to
            the gradient.

    Raises:
        ValueError: shapes that do not match, unequal vocabularies without `valid_vocab`, or an undefined divergence.
    """
    check_arguments(kind, beta, temperature, chunk_size, (student_hidden, teacher_hidden, token_weights, token_ids))
    vocab = counted_vocab(student_weight.shape[0], teacher_weight.shape[0], valid_vocab)
    if kind == "topk_reverse_kl" and top_k < 1:
        raise ValueError(f"top_k={top_k} with kind='topk_reverse_kl': must be at least 1 token")
    if policy is not None and token_ids is None:
        raise ValueError("token_ids=None with a policy gradient: give the sampled tokens")
    # Inside a Function's forward grad mode is always off, so the caller's mode is passed in.
    call = _Call(kind, beta, temperature, chunk_size, vocab, torch.is_grad_enabled(), top_k, policy)
    teacher = (teacher_hidden.detach(), teacher_weight.detach())
    loss_sum, statistics = _ChunkedDivergence.apply(
        student_hidden, student_weight, teacher, token_weights.detach(), token_ids, call
    )
    nonfinite = ~torch.isfinite(statistics[:3]).all(dim=0)
    return DivergenceOutput.of(loss_sum, statistics, nonfinite, token_ids, vocab)


def check_arguments(
    kind: str,
    beta: float,
    temperature: float,
    chunk_size: int | None,
    tokens: tuple[Tensor, Tensor, Tensor, Tensor | None],
) -> None:
    """Refuse a divergence that is not defined, a chunk of no token, and per-token inputs of different length.

    Args:
        chunk_size: None for a form that sizes its chunks itself.
        tokens: student_hidden, teacher_hidden, token_weights, and token_ids where there are any.

    Raises:
        ValueError: one of these; names the argument.
    """
    check_divergence(kind, beta, temperature, kinds=(*DIVERGENCE_KINDS, *COMPARISONS))
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size={chunk_size}: must be at least 1 token")
    names = ("student_hidden", "teacher_hidden", "token_weights", "token_ids")
    lengths = {name: len(tensor) for name, tensor in zip(names, tokens, strict=True) if tensor is not None}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"tokens {lengths}: every per-token input must have the same length T")


def counted_vocab(student_vocab: int, teacher_vocab: int, valid_vocab: int | None) -> int:
    """Number of leading vocabulary entries that count on both sides."""
    if valid_vocab is None:
        if student_vocab != teacher_vocab:
            raise ValueError(
                f"valid_vocab=None with heads of {student_vocab} (student) and {teacher_vocab} (teacher) entries: padded "
                "vocabularies of different size need valid_vocab, the number of the tokenizer's entries"
            )
        return student_vocab
    if not 1 <= valid_vocab <= min(student_vocab, teacher_vocab):
        raise ValueError(
            f"valid_vocab={valid_vocab}: must lie between 1 and the smaller head, {min(student_vocab, teacher_vocab)} "
            f"entries (student {student_vocab}, teacher {teacher_vocab}); give the tokenizer's number of entries"
        )
    return valid_vocab


class _Call(NamedTuple):
    """The arguments of one call that are no tensors."""

    kind: DivergenceKind
    beta: float
    temperature: float
    chunk_size: int
    vocab: int
    with_gradient: bool
    top_k: int
    policy: PolicyTerm | None


class _ChunkedDivergence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        student_hidden: Tensor,
        student_weight: Tensor,
        teacher: tuple[Tensor, Tensor],
        token_weights: Tensor,
        token_ids: Tensor | None,
        call: _Call,
    ) -> tuple[Tensor, Tensor]:
        dtype = compute_dtype(student_hidden, student_weight, *teacher)
        need_hidden, need_weight = (call.with_gradient and needed for needed in ctx.needs_input_grad[:2])
        grad_hidden = torch.zeros_like(student_hidden) if need_hidden else None
        grad_weight = torch.zeros_like(student_weight, dtype=dtype) if need_weight else None
        # verl runs the forward under bf16 autocast, which would round every logit to 8 significant bits.
        with torch.autocast(student_hidden.device.type, enabled=False):
            statistics = _run_chunks(
                (student_hidden, student_weight[: call.vocab].to(dtype)),
                (teacher[0], teacher[1][: call.vocab].to(dtype)),
                token_weights.to(dtype),
                token_ids,
                call,
                grad_hidden,
                grad_weight,
            )
        loss_sum = (statistics[0] * token_weights).sum(dtype=dtype)
        if call.policy is not None:
            loss_sum += (statistics[5] * call.policy.token_weights).sum(dtype=dtype)
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.weight_dtype = student_weight.dtype
        ctx.mark_non_differentiable(statistics)
        ctx.set_materialize_grads(False)
        return loss_sum, statistics

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        grad_loss = grad_outputs[0]
        if grad_loss is None:
            return (None,) * 6
        grad_hidden, grad_weight = ctx.saved_tensors
        if grad_hidden is not None:
            grad_hidden = grad_hidden * grad_loss.to(grad_hidden.dtype)
        if grad_weight is not None:
            grad_weight = (grad_weight * grad_loss).to(ctx.weight_dtype)
        return grad_hidden, grad_weight, None, None, None, None


def _run_chunks(
    student: tuple[Tensor, Tensor],
    teacher: tuple[Tensor, Tensor],
    token_weights: Tensor,
    token_ids: Tensor | None,
    call: _Call,
    grad_hidden: Tensor | None,
    grad_weight: Tensor | None,
) -> Tensor:
    """Run the row kernel over chunks of tokens; adds to the two gradients in place and returns the statistics of `row_statistics`.

    `student` and `teacher` are (hidden [T, d], head [vocab, d] in the computing dtype), already cut to what counts.
    """
    student_hidden, student_head = student
    teacher_hidden, teacher_head = teacher
    with_gradient = grad_hidden is not None or grad_weight is not None
    parts = []
    # An empty batch still runs one chunk of no tokens, so that it yields tensors of the right kind.
    for start in range(0, max(len(student_hidden), 1), call.chunk_size):
        chunk = slice(start, start + call.chunk_size)
        hidden = student_hidden[chunk].to(student_head.dtype)
        statistics, gradient = row_statistics(
            hidden @ student_head.T,
            teacher_hidden[chunk].to(teacher_head.dtype) @ teacher_head.T,
            call.kind,
            beta=call.beta,
            temperature=call.temperature,
            picked=None if token_ids is None else token_ids[chunk],
            gradient_scale=token_weights[chunk] if with_gradient else None,
            top_k=call.top_k,
            policy=None if call.policy is None else call.policy.at(chunk),
        )
        if grad_hidden is not None and gradient is not None:
            grad_hidden[chunk] = gradient @ student_head
        if grad_weight is not None and gradient is not None:
            grad_weight[: call.vocab].addmm_(gradient.T, hidden)
        parts.append(statistics)
    return torch.cat(parts, dim=1)
