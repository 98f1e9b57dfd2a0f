"""The fused divergence as an autograd function: the forward makes the gradients, the backward hands them out."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class FusedDivergence(torch.autograd.Function):
    """The loss sum, statistics [5, T], which rows are not finite, storage and error of one call.

    Inputs: `opd.losses.cuda.run.Inputs`, one by one; the `opd.losses.cuda.run.Call`; whether a gradient is asked for at all.
    """

    @staticmethod
    def forward(
        ctx: Any,
        student_hidden: Tensor,
        student_weight: Tensor,
        teacher_hidden: Tensor,
        teacher_weight: Tensor,
        token_weights: Tensor,
        token_ids: Tensor | None,
        call: Any,
        with_gradient: bool,
    ) -> tuple[Any, ...]:
        from opd.losses.cuda.run import Inputs, run

        need_hidden, need_weight = (with_gradient and needed for needed in ctx.needs_input_grad[:2])
        inputs = Inputs(student_hidden, student_weight, teacher_hidden, teacher_weight, token_weights, token_ids)
        with torch.cuda.device(student_hidden.device), torch.autocast("cuda", enabled=False):
            result = run(inputs, call, need_hidden=need_hidden, need_weight=need_weight)
        ctx.gradients = (result.grad_hidden, result.grad_weight)
        ctx.weight_grad_dtype = _grad_dtype(student_weight)
        statistics, nonfinite = result.stats[:, :5].T.contiguous(), result.stats[:, 5] == 0
        ctx.mark_non_differentiable(statistics, nonfinite)
        ctx.set_materialize_grads(False)
        return result.loss_sum, statistics, nonfinite, result.precision, result.expected_error

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        from opd.losses.cuda.scale_kernel import scale_in_place

        grad_loss = grad_outputs[0]
        if grad_loss is None:
            return (None,) * 8
        if ctx.gradients is None:
            raise RuntimeError("head_divergence: its gradients were handed out by an earlier backward; call it again")
        (grad_hidden, grad_weight), ctx.gradients = ctx.gradients, None
        if grad_hidden is not None:
            scale_in_place(grad_hidden, grad_loss.float())
        if grad_weight is not None and ctx.weight_grad_dtype == torch.float32:
            scale_in_place(grad_weight, grad_loss.float())
        elif grad_weight is not None:
            narrow = torch.empty_like(grad_weight, dtype=ctx.weight_grad_dtype)
            grad_weight = torch.mul(grad_weight, grad_loss, out=narrow)
        return grad_hidden, grad_weight, None, None, None, None, None, None


def _grad_dtype(weight: Tensor) -> torch.dtype:
    """The dtype in which autograd takes this tensor's gradient; a leaf may ask for another than its own, or for any."""
    if not weight.is_leaf:
        return weight.dtype
    return torch.float32 if weight.grad_dtype is None else weight.grad_dtype
