"""The divergence from hidden states on whatever device the tensors are: the fused CUDA form, or the plain chunked one."""

import functools
import importlib.util
import logging
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from opd.losses.chunked import check_arguments, chunked_divergence, counted_vocab
from opd.losses.divergence import COMPARISONS, DivergenceKind
from opd.losses.hopper.plan import LogitsPrecision
from opd.losses.output import DivergenceOutput
from opd.losses.policy import PolicyTerm

RETRY_AFTER = 64
"""Calls in fp32 before fp16 is tried again. A try that fails costs half a call, fp32 a tenth of each; a student that has come
close to its teacher stays there."""


class StorageMemory:
    """Remembers over calls that logits had to be stored in fp32, so that not every call tries fp16 first and starts over."""

    def __init__(self) -> None:
        self._num_wide = 0

    @property
    def precision(self) -> LogitsPrecision:
        """What to begin the next call with."""
        return "fp32" if self._num_wide % RETRY_AFTER else "fp16"

    def learn(self, used: str) -> None:
        """`used`: `DivergenceOutput.precision` of a call; of a plain one, which stores no logits, nothing is learnt."""
        if used not in ("fp16", "fp32"):
            return
        self._num_wide = self._num_wide + 1 if used == "fp32" else 0


class FusedDivergence(torch.autograd.Function):
    """The loss sum, statistics [5, T], which rows are not finite, storage and error of one call.

    Inputs: `opd.losses.hopper.run.Inputs`, one by one; the `opd.losses.hopper.run.Call`; whether a gradient is asked for at all.
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
        from opd.losses.hopper.run import Inputs, run

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
        from opd.losses.hopper.scale_kernel import scale_in_place

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


logger = logging.getLogger(__name__)

Backend = Literal["fused", "chunked"]
# Expected error of the logits' gradient beyond which logits are stored in fp32. It limits what is expected, not what is: see
# `DivergenceOutput.expected_error`.
MAX_EXPECTED_ERROR = 2.5e-3


def fused_obstacle(student_weight: Tensor, teacher_weight: Tensor) -> str | None:
    """Why the fused form cannot take these heads, or None if it can."""
    for name, weight in (("student_weight", student_weight), ("teacher_weight", teacher_weight)):
        if weight.device.type != "cuda":
            return f"{name} is on {weight.device.type}, not on a CUDA device"
        if weight.dtype not in (torch.bfloat16, torch.float16):
            return f"{name} is {weight.dtype}; the fused form takes bfloat16 and float16"
        if weight.shape[1] % 8 or not weight.is_contiguous():
            return f"{name} of shape {tuple(weight.shape)}: needs contiguous rows of a multiple of 8 entries"
    if torch.cuda.get_device_capability(student_weight.device) < (9, 0):
        return "the device has no thread-block clusters (compute capability 9.0, Hopper)"
    return _missing_module()


@functools.cache
def _missing_module() -> str | None:
    for module in ("triton", "cuda.bindings"):
        try:
            found = importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:  # the parent package is not there either
            found = False
        if not found:
            return f"the module {module} is not installed"
    return None


def say_plain(weight: Tensor, obstacle: str) -> None:
    """Warn once of each obstacle where a CUDA device has to use the plain form.

    Args:
        weight: of a head, by whose place the device is known.
    """
    if weight.device.type == "cuda":
        _warn_once(obstacle)


@functools.cache
def _warn_once(obstacle: str) -> None:
    logger.warning("head divergence falls back to the plain chunked path on a CUDA device: %s", obstacle)


def head_divergence(
    student_hidden: Tensor,
    student_weight: Tensor,
    teacher_hidden: Tensor,
    teacher_weight: Tensor,
    kind: DivergenceKind,
    *,
    token_weights: Tensor,
    chunk_size: int,
    workspace_gib: float,
    beta: float = 0.0,
    temperature: float = 1.0,
    valid_vocab: int | None = None,
    token_ids: Tensor | None = None,
    precision: LogitsPrecision = "fp16",
    max_expected_error: float = MAX_EXPECTED_ERROR,
    backend: Backend | None = None,
    top_k: int = 0,
    policy: PolicyTerm | None = None,
) -> DivergenceOutput:
    """Weighted sum of per-token divergences of `hidden @ weight.T` on both sides, over the full vocabulary.

    Arguments, formulas and gradients are those of `chunked_divergence`. The plain form runs for a kind of `COMPARISONS` and with
    a policy gradient, which have no kernels, and says so once on a CUDA device. Else, on a Hopper or newer GPU with 16-bit heads the
    fused form runs, elsewhere the plain one. The fused form:

    - makes both gradients in the forward: d loss / d hidden in the hidden states' dtype, d loss / d weight in fp32. The
      head gets it in its own dtype, or in fp32 if it is a leaf with `grad_dtype` float32 or None. Its backward can run
      once.
    - keeps at most `workspace_gib` beside inputs, gradients and per-token outputs, whatever the number of tokens.
    - stores logits in 16 bits as distances below the maximum of their block of 256, rounded from fp32 sums, computes
      the gradient's expected rounding error from its own numbers, and repeats with fp32 logits where it exceeds
      `max_expected_error` (student and teacher nearly equal); `precision="fp32"` skips the first try, and
      `StorageMemory` says when to.
    - multiplies gradients over the next multiple of 64 entries, where they are 0: an odd number of them, as
      Qwen's tokenizers have, costs no more than a rounded one. What a head holds behind the entries that count is not read.
    - has no atomics and a fixed order of every sum: two runs on one device give the same bits.
    - reads a few numbers back (largest weight, the gradients' own) while later products run.

    Args:
        chunk_size: tokens a chunk of the plain path; the fused form sizes its chunks from `workspace_gib`.
        workspace_gib: memory for logits and their gradient. More is faster, up to 2 V bytes for each token.
        backend: None chooses; `fused` raises where the fused form cannot run.

    Raises:
        ValueError: shapes, vocabularies or divergence as in `chunked_divergence`, a nan or inf in `token_weights`, a
            workspace below 128 tokens' needs, or `backend="fused"` where it cannot run.
    """
    check_arguments(kind, beta, temperature, None, (student_hidden, teacher_hidden, token_weights, token_ids))
    vocab = counted_vocab(student_weight.shape[0], teacher_weight.shape[0], valid_vocab)
    heads = (student_hidden, student_weight, teacher_hidden, teacher_weight)
    lacking = _without_kernels(kind, policy)
    if choose_backend(student_weight, teacher_weight, backend, lacking) == "chunked":
        return chunked_divergence(
            *heads,
            kind,
            token_weights=token_weights,
            beta=beta,
            temperature=temperature,
            chunk_size=chunk_size,
            valid_vocab=vocab,
            token_ids=token_ids,
            top_k=top_k,
            policy=policy,
        )
    from opd.losses.hopper.run import Call

    call = Call(kind, beta, temperature, vocab, int(workspace_gib * 2**30), precision, max_expected_error)
    ids = None if token_ids is None else token_ids.long().contiguous()
    loss_sum, statistics, nonfinite, used, error = FusedDivergence.apply(
        *heads, token_weights.detach(), ids, call, torch.is_grad_enabled()
    )
    return DivergenceOutput.of(loss_sum, statistics, nonfinite, token_ids, vocab, precision=used, expected_error=error)


def _without_kernels(kind: DivergenceKind, policy: PolicyTerm | None) -> str | None:
    """What of a loss the fused form does not have; None: nothing."""
    if kind in COMPARISONS:
        return f"{kind} has no fused kernel"
    return None if policy is None else "a policy gradient has no fused kernel"


def choose_backend(
    student_weight: Tensor, teacher_weight: Tensor, backend: Backend | None = None, lacking: str | None = None
) -> Backend:
    """The form that takes these heads; warns once where a CUDA device has to use the plain one.

    Args:
        lacking: what of the loss the fused form does not have; None: nothing.

    Raises:
        ValueError: `backend="fused"` and it cannot run.
    """
    if backend == "chunked":
        return "chunked"
    obstacle = lacking or fused_obstacle(student_weight, teacher_weight)
    if obstacle is None:
        return "fused"
    if backend == "fused":
        raise ValueError(f"backend='fused': {obstacle}; leave backend unset to fall back to the plain path")
    say_plain(student_weight, obstacle)
    return "chunked"
