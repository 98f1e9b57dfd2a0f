"""The loss of one chunk of tokens, from logits to the logits' gradient: a pure function that is compiled on a GPU."""

import functools
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from opd.losses.divergences import FLOOR, Function, log_probs
from opd.losses.terms import HiddenTargets, PolicyLoss, Request

FP16_SCALE = 1024.0
"""Factor of a gradient stored in fp16, which keeps it away from fp16's smallest numbers."""


class Form(NamedTuple):
    """The parts of a call that are no tensors. Each form is compiled once per shape of its chunks."""

    function: Function | None
    params: tuple[tuple[str, Any], ...]
    policy: PolicyLoss | None
    temperature: float
    vocab: int
    top_k: int
    watch: tuple[str, ...]

    @classmethod
    def of(cls, request: Request) -> "Form":
        """Return the form of a call."""
        loss, has_targets = request.loss, request.targets is not None
        return cls(
            function=loss.divergence.function if has_targets else None,
            params=tuple(sorted(loss.params.items())) if has_targets else (),
            policy=loss.policy if request.advantages is not None else None,
            temperature=loss.temperature,
            vocab=request.vocab,
            top_k=loss.top_k if isinstance(request.targets, HiddenTargets) else 0,
            watch=tuple(sorted(request.watch)),
        )


class Chunk(NamedTuple):
    """The tensors of C tokens. Logits have the vocabulary's entries first; further columns are ignored.

    Args:
        student, teacher: [C, P] logits; teacher None: no teacher, or a teacher that gives events.
        events: [C, k] the tokens that are events of their own, and `is_event` [C, P] a mask of them; None: every token.
        event_log_probs: [C, k] the teacher's, where it has no logits.
        others: [C] each.
    """

    student: Tensor
    teacher: Tensor | None
    events: Tensor | None
    is_event: Tensor | None
    event_log_probs: Tensor | None
    ids: Tensor
    divergence: Tensor | None
    policy: Tensor | None
    nll: Tensor | None
    entropy: Tensor | None
    advantages: Tensor | None
    old_log_probs: Tensor | None
    slopes: Tensor | None


def chunk_loss(form: Form, x: Chunk, out: Tensor | None) -> tuple[dict[str, Tensor], Tensor | None]:
    """Compute the statistics of a chunk, with `loss` [C] of each token, and write the logits' gradient to `out` [C, P].

    `out` None means statistics only.

    The gradient by the student's log-probabilities is autograd's, g. The gradient by its logits is then
    (g - p sum g) / temperature. All terms of the sampled token's log-probability are one slope of it.

    Returns:
        The statistics, and the gradient [C, k] at `x.events`, which the caller puts in its place.
    """
    log_s = log_probs(x.student[:, : form.vocab], form.temperature)
    log_t = None if x.teacher is None else log_probs(x.teacher[:, : form.vocab], form.temperature)
    log_y = _of_token(log_s, x.ids)
    statistics = {"log_prob": log_y}
    slope, loss = _token_terms(form, x, log_y, statistics)
    if log_t is not None:
        statistics["teacher_log_prob"] = _of_token(log_t, x.ids)
        if "teacher_entropy" in form.watch:
            statistics["teacher_entropy"] = -(log_t.exp() * log_t).sum(-1)

    events_s, events_t, columns = (log_s, log_t, x.ids) if x.events is None else _events(form, x, log_s, log_t)

    def objective(log_s: Tensor, events_s: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        of_tokens, total = {}, torch.zeros_like(loss)
        if form.function is not None:
            assert events_t is not None
            value = form.function(events_s, events_t, columns, dict(form.params))
            of_tokens["divergence"] = value.detach()
            total = total if x.divergence is None else total + x.divergence * value
        if x.entropy is not None or "entropy" in form.watch:
            entropy = -(log_s.exp() * log_s).sum(-1)
            of_tokens["entropy"] = entropy.detach()
            total = total if x.entropy is None else total - x.entropy * entropy
        return total, of_tokens

    g = g_events = None
    if out is None or (x.divergence is None and x.entropy is None):
        total, of_tokens = objective(log_s, events_s)
    elif x.events is None:
        total, of_tokens, (g,) = with_gradient(lambda log_s: objective(log_s, log_s), log_s)
    else:
        total, of_tokens, (g, g_events) = with_gradient(objective, log_s, events_s)
    statistics |= of_tokens | {"loss": loss + total}
    if out is None:
        return statistics, None
    p = log_s.exp()
    is_token = torch.arange(form.vocab, device=log_s.device) == x.ids.unsqueeze(-1)
    z = torch.zeros_like(p) if slope is None else slope.unsqueeze(-1) * (is_token.to(p.dtype) - p)
    z = z if g is None else z + (g - p * g.sum(-1, keepdim=True))
    scale = (FP16_SCALE if out.dtype == torch.float16 else 1.0) / form.temperature
    at_events = None
    if g_events is not None and x.events is not None and x.is_event is not None:
        others = torch.where(x.is_event[:, : form.vocab], 0.0, (log_s - events_s[:, -1:]).exp())
        z = z + g_events[:, -1:] * others - p * g_events.sum(-1, keepdim=True)
        at_events = ((z.gather(-1, x.events) + g_events[:, :-1]) * scale).to(out.dtype)
    out.copy_(pad(z * scale, (0, out.shape[1] - form.vocab)))
    return statistics, at_events


def with_gradient(
    function: Callable[..., tuple[Tensor, dict[str, Tensor]]], *inputs: Tensor
) -> tuple[Tensor, dict[str, Tensor], tuple[Tensor, ...]]:
    """Return a function's values [C], its further output, and the gradients of the values' sum by its inputs."""
    if torch.compiler.is_compiling():  # a compiled function cannot hold autograd's own call
        found: Any = torch.func.vjp(function, *inputs, has_aux=True)
        values, pull, more = found
        return values, more, pull(torch.ones_like(values))
    with torch.enable_grad():
        leaves = [each.detach().requires_grad_() for each in inputs]
        values, more = function(*leaves)
        gradients = torch.autograd.grad(values.sum(), leaves, materialize_grads=True)
    return values.detach(), more, gradients


def _of_token(log_p: Tensor, ids: Tensor) -> Tensor:
    """Return the log-probability [C] of each token, 0 outside the vocabulary."""
    last = log_p.shape[-1] - 1
    found = log_p.gather(-1, ids.clamp(0, last).unsqueeze(-1)).squeeze(-1)
    return torch.where((ids >= 0) & (ids <= last), found, 0.0)


def _token_terms(form: Form, x: Chunk, log_y: Tensor, statistics: dict[str, Tensor]) -> tuple[Tensor | None, Tensor]:
    """Return the slope [C] of the loss by each token's log-probability, None without such terms, and their loss [C]."""
    slopes, loss = [], torch.zeros_like(log_y)
    if form.policy is not None and x.advantages is not None:
        policy, advantages = form.policy, x.advantages
        old = log_y if x.old_log_probs is None else x.old_log_probs
        losses, _, (of_policy,) = with_gradient(lambda current: (policy(current, old, advantages), {}), log_y)
        statistics["policy_loss"], statistics["policy_slope"] = losses, of_policy
        if x.policy is not None:
            slopes.append(x.policy * of_policy)
            loss = loss + x.policy * losses
    if x.nll is not None:
        slopes.append(-x.nll)
        loss = loss - x.nll * log_y
    if x.slopes is not None:
        slopes.append(x.slopes)
    if not slopes:
        return None, loss
    is_known = (x.ids >= 0) & (x.ids < form.vocab)
    return torch.where(is_known, torch.stack(slopes).sum(0), 0.0), loss


def _events(form: Form, x: Chunk, log_s: Tensor, log_t: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return both sides' log-probabilities [C, k + 1] of the events, and each token's event, -1 outside the vocabulary."""
    assert x.events is not None
    assert x.is_event is not None
    events, is_event = x.events, x.is_event[:, : form.vocab]

    def of_side(side: Tensor) -> Tensor:
        others = torch.where(is_event, 0.0, side.exp()).sum(-1, keepdim=True)
        return torch.cat([side.gather(-1, events), others.clamp(min=torch.finfo(side.dtype).tiny).log()], -1)

    if log_t is None:
        assert x.event_log_probs is not None
        given = x.event_log_probs.to(log_s.dtype).clamp(min=FLOOR)
        others = -torch.expm1(given.logsumexp(-1, keepdim=True).clamp(max=0.0))
        events_t = torch.cat([given, others.clamp(min=torch.finfo(given.dtype).tiny).log()], -1)
    else:
        events_t = of_side(log_t)
    is_own = events == x.ids.unsqueeze(-1)
    column = torch.where(is_own.any(-1), is_own.to(torch.int64).argmax(-1), events.shape[1])
    return of_side(log_s), events_t, torch.where((x.ids >= 0) & (x.ids < form.vocab), column, -1)


@functools.lru_cache(maxsize=64)
def compiled(form: Form, rows: int, entries: int) -> Callable[[Chunk, Tensor | None], Any]:
    """Return `chunk_loss` of one form, compiled for chunks of one shape.

    The thresholds keep every [C, P] intermediate in registers: Inductor would else store a log ratio that is used
    twice, which costs a chunk's memory. The copy of the code object gives each form a limit of recompilations of its own.
    """

    def run(x: Chunk, out: Tensor | None) -> Any:
        return chunk_loss(form, x, out)

    code = run.__code__.replace(co_name=f"chunk_loss_{rows}x{entries}")
    own = types.FunctionType(code, run.__globals__, code.co_name, run.__defaults__, run.__closure__)
    options: dict[str, Any] = {
        "realize_reads_threshold": 64,
        "realize_opcount_threshold": 1000,
        "split_reductions": False,
    }
    result: Callable[[Chunk, Tensor | None], Any] = torch.compile(own, dynamic=False, fullgraph=True, options=options)
    return result
