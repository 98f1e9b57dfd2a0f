"""The loss from hidden states: one call for every term, device and form."""

import functools
import importlib
import logging
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from opd.head_form import BackendName
from opd.losses.chunks import counted_head, run_chunks
from opd.losses.divergences import compute_dtype
from opd.losses.padded_head import Trained
from opd.losses.terms import Loss, Output, Request, Targets, Weights, counted_vocab

if TYPE_CHECKING:
    from opd.losses.hopper import HopperBackend

logger = logging.getLogger(__name__)

UNSHARED_ROWS = 1024  # whose tokens' entries of the head are gathered at once
TOP_ROWS, NUM_TOP = 64, 3


@functools.cache
def fused_backend() -> "HopperBackend | None":
    """Return the fused kernels. None means that their package, or a module that it needs, is missing."""
    try:
        found: HopperBackend = importlib.import_module("opd.losses.hopper").HopperBackend()
    except ModuleNotFoundError as error:
        logger.info("the loss has no fused kernels: %s", error)
        return None
    return found


def head_loss(
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    weights: Weights,
    loss: Loss,
    *,
    targets: Targets | None = None,
    advantages: Tensor | None = None,
    old_log_probs: Tensor | None = None,
    slopes: Tensor | None = None,
    valid_vocab: int | None = None,
    chunk: int | None = None,
    workspace_gib: float | None = None,
    watch: tuple[str, ...] = (),
    backend: BackendName | None = None,
) -> Output:
    """Return the weighted sum of the loss's terms over T tokens, and statistics of each token.

    Logits exist for one chunk of tokens at a time. The forward makes the gradients by `hidden` and `weight`, the backward
    scales them. Numbers are float64 where an input is float64, else float32; a CUDA device multiplies 16-bit heads in
    16 bits with sums in float32. The gradient of `weight` comes in its dtype, or in a leaf's `grad_dtype`.

    Args:
        hidden: [T, d] the student's, after its final norm, at the positions that predict the tokens `ids` [T] int64.
        weight: [V, d] the student's output head without a bias.
        weights: one weight per token and term. Without any only statistics are computed.
        targets: the teacher's; needed for a divergence.
        advantages: [T] of the policy loss.
        old_log_probs: [T] of the policy loss. None means the current log-probabilities.
        slopes: [T] derivatives of a loss by log p that the caller has computed of the whole batch. They add to the
            gradient, and nothing to the loss.
        valid_vocab: the number of leading vocabulary entries that count, the tokenizer's. Others take part in no softmax
            and get a gradient of exactly 0. None means all entries, which must be as many on both sides.
        chunk: tokens per chunk of the plain form. None means 256.
        workspace_gib: memory for logits and their gradient in the other forms. None means the form's own size.
        watch: further statistics, of `STATISTICS`.
        backend: None chooses; a name runs this form or raises.
    """
    vocab = counted_vocab(len(weight), targets, valid_vocab)
    given = (targets, advantages, old_log_probs, slopes, chunk, workspace_gib, tuple(watch))
    request = Request(ids, weights, loss, vocab, *given)
    request.check(hidden)
    depends = any(each is not None for each in (*weights, slopes))
    # A Function's forward cannot see the caller's grad mode.
    trains = depends and torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    chosen = choose_backend(weight, request, backend, trains=trains)
    total, statistics = _HeadLoss.apply(hidden, weight, request, chosen, trains)
    is_unknown = (ids < 0) | (ids >= vocab)
    for name in {"log_prob", "teacher_log_prob"} & statistics.keys():
        statistics[name] = statistics[name].masked_fill(is_unknown, -torch.inf)
    return Output(total, statistics, chosen)


def choose_backend(weight: Tensor, request: Request, backend: BackendName | None, *, trains: bool) -> BackendName:
    """Return the form that runs a call."""
    if backend in ("plain", "compiled") or (backend is None and weight.device.type != "cuda"):
        return backend or "plain"
    fused = fused_backend()
    obstacle: str | None = "no gradient is asked for"
    if fused is None:
        obstacle = "its package or a module that it needs is missing"
    elif trains and (obstacle := fused.obstacle(weight, request)) is None:
        return "fused"
    if backend is not None:
        raise ValueError(f"backend={backend!r}: {obstacle}; leave backend unset for the compiled form")
    return "compiled"


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, request: Request, name: BackendName, trains: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        fused = fused_backend() if name == "fused" else None
        run = functools.partial(run_chunks, compile=name == "compiled") if fused is None else fused.forward
        trained = Trained(*(trains and needed for needed in ctx.needs_input_grad[:2]))
        # verl runs the forward under bf16 autocast, which would round every logit to 8 significant bits.
        with torch.autocast(hidden.device.type, enabled=False):
            result = run(hidden, weight, request, trained)
        ctx.gradients, ctx.weight_dtype = (result.grad_hidden, result.grad_weight), weight.dtype
        if weight.is_leaf:  # it may ask for a gradient of another dtype than its own, or of any
            ctx.weight_dtype = torch.float32 if weight.grad_dtype is None else weight.grad_dtype
        ctx.set_materialize_grads(False)
        return result.loss, result.statistics

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        grad_loss = grad_outputs[0]
        if grad_loss is None:
            return (None,) * 5
        if ctx.gradients is None:
            raise RuntimeError("head_loss: its gradients were handed out by an earlier backward; call it again")
        (grad_hidden, grad_weight), ctx.gradients = ctx.gradients, None
        if grad_hidden is not None:
            grad_hidden.mul_(grad_loss)
        if grad_weight is not None:
            out = grad_weight
            if out.dtype != ctx.weight_dtype:
                out = torch.empty_like(grad_weight, dtype=ctx.weight_dtype)
            grad_weight = torch.mul(grad_weight, grad_loss, out=out)
        return grad_hidden, grad_weight, None, None, None


@torch.no_grad()
def token_log_probs(hidden: Tensor, weight: Tensor, ids: Tensor, *, temperature: float = 1.0, **options: Any) -> Tensor:
    """Return log p [T] of the tokens, without a gradient; options as of `head_loss`."""
    return head_loss(hidden, weight, ids, Weights(), Loss(temperature=temperature), **options).statistics["log_prob"]


@torch.no_grad()
def unshared_mass(
    hidden: Tensor,
    weight: Tensor,
    *,
    shared: int,
    entries: int,
    token_ids: Tensor,
    log_prob: Tensor,
    temperature: float,
) -> Tensor:
    """Return the probability [T] of the tokens `shared` ... `entries - 1`, without a second pass over the vocabulary.

    It is sigmoid(logsumexp(z_unshared) - logsumexp(z_shared)) with logits z over the temperature. The latter is
    z_token - log_prob of any shared token: `token_ids` [T], with `log_prob` [T] among the shared ones.
    """
    dtype = compute_dtype(hidden, weight)
    own, parts = weight[shared:entries].to(dtype), []
    with torch.autocast(hidden.device.type, enabled=False):
        for states, ids in zip(hidden.split(UNSHARED_ROWS), token_ids.split(UNSHARED_ROWS), strict=True):
            states, tokens = states.to(dtype), weight[ids].to(dtype)
            parts.append(torch.logsumexp(states @ own.T / temperature, -1) - (states * tokens).sum(-1) / temperature)
    return torch.sigmoid(torch.cat(parts) + log_prob)


@torch.no_grad()
def top_tokens(hidden: Tensor, weight: Tensor, shown: Tensor, *, vocab: int, temperature: float) -> Tensor:
    """Return the most likely tokens and their probabilities [T, NUM_TOP, 2], nan except for tokens `shown` [T] bool."""
    dtype = compute_dtype(hidden, weight)
    head, found = counted_head(weight, vocab, dtype), hidden.new_full((len(hidden), NUM_TOP, 2), torch.nan, dtype=dtype)
    for at in shown.nonzero().squeeze(-1).split(TOP_ROWS):
        with torch.autocast(hidden.device.type, enabled=False):
            logits = head.logits(hidden[at].to(head.dtype), hidden.new_empty(len(at), head.padded, dtype=dtype))
        values, ids = (logits / temperature).softmax(-1).topk(min(NUM_TOP, vocab))
        found[at, : values.shape[1]] = torch.stack([ids.to(dtype), values], -1)
    return found
