"""The fused divergence as one autograd function: the forward makes the gradients, the backward hands them out."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class FusedDivergence(torch.autograd.Function):
    """Inputs: `opd.losses.fused.head_divergence`; `call` is a `opd.losses.cuda.run.Call`."""

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
    ) -> tuple[Any, ...]:
        from opd.losses.cuda.run import Inputs, run

        need_hidden, need_weight = (call.with_gradient and needed for needed in ctx.needs_input_grad[:2])
        inputs = Inputs(student_hidden, student_weight, teacher_hidden, teacher_weight, token_weights, token_ids)
        with torch.cuda.device(student_hidden.device), torch.autocast("cuda", enabled=False):
            if call.share is None:
                result = run(inputs, call, need_hidden=need_hidden, need_weight=need_weight)
            else:
                from opd.losses.cuda.sliced import run_sliced

                result = run_sliced(inputs, call, call.share, need_hidden=need_hidden, need_weight=need_weight)
        ctx.gradients = (result.grad_hidden, result.grad_weight)
        ctx.weight_grad_dtype = _grad_dtype(student_weight)
        statistics, nonfinite = result.stats[:, :5].T.contiguous(), result.stats[:, 5] == 0
        ctx.mark_non_differentiable(statistics, nonfinite)
        ctx.set_materialize_grads(False)
        return result.loss_sum, statistics, nonfinite, result.precision, result.estimated_error

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        from opd.losses.cuda.logits_kernel import scale_in_place

        grad_loss = grad_outputs[0]
        if grad_loss is None:
            return (None,) * 7
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
        return grad_hidden, grad_weight, None, None, None, None, None


def _grad_dtype(weight: Tensor) -> torch.dtype:
    """The dtype in which autograd takes this tensor's gradient; a leaf may ask for another than its own, or for any."""
    if not weight.is_leaf:
        return weight.dtype
    return torch.float32 if weight.grad_dtype is None else weight.grad_dtype


class FusedChoice(FusedDivergence):
    """Inputs: as of `FusedDivergence`, but for `call`, a `opd.losses.cuda.chosen.ChosenCall`."""

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
    ) -> tuple[Any, ...]:
        from opd.losses.cuda.chosen import run_chosen
        from opd.losses.cuda.run import Inputs

        need_hidden, need_weight = (call.call.with_gradient and needed for needed in ctx.needs_input_grad[:2])
        inputs = Inputs(student_hidden, student_weight, teacher_hidden, teacher_weight, token_weights, token_ids)
        with torch.cuda.device(student_hidden.device), torch.autocast("cuda", enabled=False):
            chosen = run_chosen(inputs, call, need_hidden=need_hidden, need_weight=need_weight)
        result = chosen.of_kept
        ctx.gradients = (result.grad_hidden, result.grad_weight)
        ctx.weight_grad_dtype = _grad_dtype(student_weight)
        statistics, nonfinite = result.stats[:, :5].T.contiguous(), result.stats[:, 5] == 0
        tensors = (statistics, nonfinite, chosen.kept, chosen.tokens, chosen.entropy)
        ctx.mark_non_differentiable(*tensors, *(() if chosen.divergence is None else (chosen.divergence,)))
        ctx.set_materialize_grads(False)
        return result.loss_sum, *tensors, chosen.divergence, result.precision, result.estimated_error
