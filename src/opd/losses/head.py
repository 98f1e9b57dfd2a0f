"""The loss from hidden states: one call for every term, device and form."""

from __future__ import annotations

import functools
import importlib.util
import logging
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from opd.head_form import BackendName, Need
from opd.losses.chunks import Forward, run_chunks
from opd.losses.divergences import compute_dtype
from opd.losses.terms import HiddenTargets, Loss, Output, Request, Targets, Weights, check, counted_vocab

logger = logging.getLogger(__name__)

DTYPE_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
UNSHARED_ROWS = 1024
"""Rows whose token's entry of the head is gathered at once."""


class Backend(Protocol):
    """A faster form of some calls. It registers itself with `register_backend` when its package is imported."""

    def lacks(self, need: Need) -> str | None:
        """Return the part of a loss, or of a device, that the backend lacks. None means that all is there."""

    def obstacle(self, weight: Tensor, request: Request) -> str | None:
        """Return the reason why the backend cannot run a call, besides what it lacks. None means that it can."""

    def forward(
        self, hidden: Tensor, weight: Tensor, request: Request, *, need_hidden: bool, need_weight: bool
    ) -> Forward:
        """Run a call; the gradients are for a loss whose own gradient is 1."""


BACKENDS: dict[str, Backend] = {}
BACKEND_PACKAGES = ("opd.losses.hopper",)
"""Imported before the first call on a CUDA device, as far as they are there."""


def register_backend(name: str, backend: Backend) -> None:
    """Add a backend that `head_loss` prefers to the compiled form."""
    BACKENDS[name] = backend


@functools.cache
def load_backends() -> None:
    """Import the packages that register backends."""
    for package in BACKEND_PACKAGES:
        if importlib.util.find_spec(package) is not None:
            importlib.import_module(package)


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
    16 bits with sums in float32. A CUDA device runs the compiled form, or a registered backend that can do the call. The
    gradient of `weight` comes in its dtype, or in float32 if it is a leaf with `grad_dtype` float32 or None.

    Args:
        hidden: [T, d] the student's hidden states after its final norm, at the positions that predict the tokens.
        weight: [V, d] the student's output head without a bias.
        ids: [T] int64, the sampled tokens.
        weights: one weight per token and term. Without any only statistics are computed.
        targets: the teacher's; needed for a divergence.
        advantages, old_log_probs: [T] of the policy loss. Old log-probabilities None: the current ones.
        slopes: [T] derivatives of a loss by log p that the caller has computed of the whole batch. They add to the
            gradient, and nothing to the loss.
        valid_vocab: the number of leading vocabulary entries that count, the tokenizer's. Others take part in no softmax
            and get a gradient of exactly 0. None: all entries, of which both sides must have as many.
        chunk: tokens per chunk of the plain form. None: 256.
        workspace_gib: memory for logits and their gradient in the other forms. None: what each form runs well with.
        watch: further statistics, of `STATISTICS`.
        backend: None chooses; a name runs this form or raises.

    Raises:
        ValueError: inputs do not match, or `backend` cannot run.
    """
    request = Request(
        ids=ids,
        weights=weights,
        loss=loss,
        targets=targets,
        advantages=advantages,
        old_log_probs=old_log_probs,
        slopes=slopes,
        vocab=counted_vocab(len(weight), targets, valid_vocab),
        watch=tuple(watch),
        chunk=chunk,
        workspace_gib=workspace_gib,
        trains=torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad),
    )
    check(request, hidden)
    chosen = choose_backend(weight, request, backend)
    total, forward = _HeadLoss.apply(hidden, weight, request, chosen)
    statistics = dict(forward.statistics)
    is_unknown = (ids < 0) | (ids >= request.vocab)
    for name in {"log_prob", "teacher_log_prob"} & statistics.keys():
        statistics[name] = statistics[name].masked_fill(is_unknown, -torch.inf)
    return Output(total, statistics, forward.backend, forward.facts)


def choose_backend(weight: Tensor, request: Request, backend: BackendName | None = None) -> BackendName:
    """Return the form that runs a call.

    Raises:
        ValueError: `backend` is a registered one that cannot run the call, or is not there.
    """
    if backend in ("plain", "compiled") or (backend is None and weight.device.type != "cuda"):
        return backend or "plain"
    load_backends()
    reasons = {}
    for name, each in BACKENDS.items():
        obstacle = each.lacks(_need_of(weight, request)) or each.obstacle(weight, request)
        if obstacle is None and backend in (None, name):
            return name  # type: ignore[return-value]  # a name of `BackendName`
        reasons[name] = obstacle
    if backend is not None:
        raise ValueError(
            f"backend={backend!r}: {reasons.get(backend) or 'its package is missing'}; leave backend unset for the compiled form"
        )
    return "compiled" if _can_compile() else "plain"


def _need_of(weight: Tensor, request: Request) -> Need:
    targets = request.targets
    heads = (weight, targets.weight) if isinstance(targets, HiddenTargets) else (weight,)
    return Need(
        request.loss.kind,
        request.loss.top_k,
        frozenset(name for name, values in request.per_token.items() if values is not None),
        frozenset(DTYPE_NAMES.get(head.dtype, str(head.dtype)) for head in heads),
        torch.cuda.get_device_capability(weight.device) if weight.device.type == "cuda" else None,
    )


@functools.cache
def _can_compile() -> bool:
    can = importlib.util.find_spec("triton") is not None
    if not can:
        logger.warning("the loss runs uncompiled and about ten times as slow: install triton for torch.compile")
    return can


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, request: Request, name: BackendName
    ) -> tuple[Tensor, Forward]:
        can = request.trains and request.has_gradient
        need_hidden, need_weight = (can and needed for needed in ctx.needs_input_grad[:2])
        # verl runs the forward under bf16 autocast, which would round every logit to 8 significant bits.
        with torch.autocast(hidden.device.type, enabled=False):
            if name in ("plain", "compiled"):
                result = run_chunks(
                    hidden,
                    weight,
                    request,
                    need_hidden=need_hidden,
                    need_weight=need_weight,
                    compile=name == "compiled",
                )
            else:
                result = BACKENDS[name].forward(
                    hidden, weight, request, need_hidden=need_hidden, need_weight=need_weight
                )
        ctx.gradients, ctx.scale = (result.grad_hidden, result.grad_weight), result.scale
        ctx.weight_dtype = _grad_dtype(weight)
        ctx.set_materialize_grads(False)
        return result.loss, result._replace(grad_hidden=None, grad_weight=None)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        grad_loss = grad_outputs[0]
        if grad_loss is None:
            return (None,) * 4
        if ctx.gradients is None:
            raise RuntimeError("head_loss: its gradients were handed out by an earlier backward; call it again")
        (grad_hidden, grad_weight), ctx.gradients = ctx.gradients, None
        if grad_hidden is not None:
            ctx.scale(grad_hidden, grad_loss)
        if grad_weight is not None and grad_weight.dtype == ctx.weight_dtype:
            ctx.scale(grad_weight, grad_loss)
        elif grad_weight is not None:
            narrow = torch.empty_like(grad_weight, dtype=ctx.weight_dtype)
            grad_weight = torch.mul(grad_weight, grad_loss, out=narrow)
        return grad_hidden, grad_weight, None, None


def _grad_dtype(weight: Tensor) -> torch.dtype:
    """Return the dtype in which autograd takes this tensor's gradient; a leaf may ask for another than its own, or any."""
    if not weight.is_leaf:
        return weight.dtype
    return torch.float32 if weight.grad_dtype is None else weight.grad_dtype


def token_log_probs(hidden: Tensor, weight: Tensor, ids: Tensor, *, temperature: float = 1.0, **options: Any) -> Tensor:
    """Return log p [T] of the tokens, without a gradient; options as of `head_loss`."""
    with torch.no_grad():
        return head_loss(hidden, weight, ids, Weights(), Loss(temperature=temperature), **options).statistics[
            "log_prob"
        ]


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

    With logits z over the temperature, logsumexp(z_shared) = z_token - log_prob of any shared token. With the few unshared
    logits the probability is sigmoid(logsumexp(z_unshared) - logsumexp(z_shared)).

    Args:
        hidden, weight, temperature: as of `head_loss`; `weight` has at least `entries` rows.
        token_ids: [T] any shared token of each position. log_prob: [T] its log-probability among the shared ones.
    """
    dtype = compute_dtype(hidden, weight)
    parts = []
    with torch.autocast(hidden.device.type, enabled=False):
        own = weight[shared:entries].to(dtype)
        for states, ids, log_p in zip(
            *(each.split(UNSHARED_ROWS) for each in (hidden, token_ids, log_prob)), strict=True
        ):
            states, tokens = states.to(dtype), weight.index_select(0, ids).to(dtype)
            of_shared = (states * tokens).sum(dim=-1) / temperature - log_p
            parts.append(torch.sigmoid(torch.logsumexp(states @ own.T / temperature, dim=-1) - of_shared))
    return torch.cat(parts)
