"""The loss of one chunk of tokens, from logits to the logits' gradient: a pure function that is compiled on a GPU."""

import functools
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from opd.losses.divergences import FLOOR, Function, log_probs
from opd.losses.padded_head import Kept
from opd.losses.terms import PolicyLoss, Request

FP16_SCALE = 1024.0  # of a gradient stored in fp16, which keeps it away from fp16's smallest numbers


class Form(NamedTuple):
    """The parts of a call that are no tensors. Each form is compiled once per shape of its chunks."""

    function: Function | None
    params: tuple[tuple[str, Any], ...]
    policy: PolicyLoss | None
    temperature: float
    vocab: int
    watch: tuple[str, ...]

    @classmethod
    def of(cls, request: Request) -> "Form":
        """Return the form of a call."""
        loss, policy = request.loss, None if request.advantages is None else request.loss.policy
        has_targets, watch = request.targets is not None, tuple(sorted(request.watch))
        function = loss.divergence.function if has_targets else None
        params = tuple(sorted(loss.params.items())) if has_targets else ()
        return cls(function, params, policy, loss.temperature, request.vocab, watch)


class Chunk(NamedTuple):
    """The tensors of C tokens, [C] each but for the first five.

    E is the vocabulary, or more: padding has a logit of minus infinity. At a token's events the logits are `FLOOR`.
    """

    student: Tensor  # [C, E] logits
    teacher: Tensor | None  # [C, E] logits; a teacher that gives events has none
    events: Tensor | None  # [C, k] the tokens that are events of their own; None means every token
    event_logits: Tensor | None  # [C, k] the student's
    event_targets: Tensor | None  # [C, k] the teacher's logits, or its log-probabilities where it has no logits
    ids: Tensor
    divergence: Tensor | None
    policy: Tensor | None
    nll: Tensor | None
    entropy: Tensor | None
    advantages: Tensor | None
    old_log_probs: Tensor | None
    slopes: Tensor | None


class Result(NamedTuple):
    """The statistics [C] of a chunk by name, with `loss`, and the gradient's entries that are not written to `out`."""

    statistics: dict[str, Tensor]
    at_events: Tensor | None = None
    kept: Kept | None = None


def chunk_loss(form: Form, x: Chunk, out: Tensor | None) -> Result:
    """Compute the statistics of a chunk and write the gradient by the logits of `student` to `out` [C, E].

    The gradient by the student's log-probabilities is autograd's, g. All terms of the sampled token's log-probability are
    one slope of it. The gradient by a logit is then g + slope [token is sampled] - p (sum g + slope), over the temperature.
    `out` None means statistics only.
    """
    log_s, events_s = _log_probs(x.student, x.event_logits, form.temperature)
    log_t = events_t = None
    if x.teacher is not None:
        log_t, events_t = _log_probs(x.teacher, x.event_targets, form.temperature)
    elif x.event_targets is not None:
        events_t = _given_events(x.event_targets.to(log_s.dtype))
    token, column = x.ids.clamp(0, form.vocab - 1), x.ids
    is_known = token == x.ids
    if x.events is not None:
        is_own = x.events == token.unsqueeze(-1)
        column = torch.where(is_own.any(-1), is_own.to(torch.int64).argmax(-1), x.events.shape[1])

    def of_token(value: Tensor, of_events: Tensor | None) -> Tensor:
        """Return the sampled token's value [C], or the value of its event [C, k] where it is one."""
        if of_events is None or x.events is None:
            return value
        last = x.events.shape[1] - 1
        return torch.where(column > last, value, _at(of_events, column.clamp(max=last)))

    log_own = of_token(_at(log_s, token), events_s)
    log_y = torch.where(is_known, log_own, 0.0)
    statistics = {"log_prob": log_y}
    slope, loss = _token_terms(form, x, log_y, is_known, statistics)
    if log_t is not None:
        statistics["teacher_log_prob"] = torch.where(is_known, of_token(_at(log_t, token), events_t), 0.0)
        if "teacher_entropy" in form.watch:
            statistics["teacher_entropy"] = _entropy(log_t, events_t)

    g: Tensor | None = None
    shrink = torch.zeros_like(loss) if slope is None else slope
    if form.function is not None:
        function, columns = form.function, torch.where(is_known, column, -1)
        params, targets = dict(form.params), log_t if events_t is None else events_t
        assert targets is not None

        def divergence(log_p: Tensor) -> tuple[Tensor, Tensor]:
            value = function(log_p, targets, columns, params)
            return value if x.divergence is None else x.divergence * value, value.detach()

        inputs = log_s if events_s is None else events_s
        if out is None or x.divergence is None:
            weighted, statistics["divergence"] = divergence(inputs)
        else:
            weighted, statistics["divergence"], g = with_gradient(divergence, inputs)
            shrink = shrink + g.sum(-1)
        loss = loss if x.divergence is None else loss + weighted.detach()
    entropy = None
    if x.entropy is not None or "entropy" in form.watch:
        entropy = statistics["entropy"] = _entropy(log_s, events_s)
        loss = loss if x.entropy is None else loss - x.entropy * entropy
    statistics["loss"] = loss
    if out is None:
        return Result(statistics)

    def by_logit(log_p: Tensor, g: Tensor | float) -> Tensor:
        p = log_p.exp()
        z = g - p * _along(shrink, p)
        if x.entropy is not None and entropy is not None:
            z = z + _along(x.entropy, p) * p * (log_p + _along(entropy, p))
        return z

    at_events = None
    if events_s is None:
        z, own = by_logit(log_s, 0.0 if g is None else g), by_logit(log_own, 0.0 if g is None else _at(g, token))
    else:
        g = torch.zeros_like(events_s) if g is None else g
        log_others = events_s[:, -1]
        of_others = torch.where(log_others > FLOOR / 2, g[:, -1], 0.0)

        def shared(log_p: Tensor) -> Tensor:
            """Return a token's part of the last event's gradient."""
            return _along(of_others, log_p) * (log_p - _along(log_others, log_p)).exp()

        z, at_events = by_logit(log_s, shared(log_s)), by_logit(events_s[:, :-1], g[:, :-1])
        own = of_token(by_logit(log_own, shared(log_own)), at_events)
    scale = (FP16_SCALE if out.dtype == torch.float16 else 1.0) / form.temperature
    out.copy_(z * scale)
    entries: list[tuple[Tensor, Tensor]] = [] if slope is None else [(token, own + slope)]
    if at_events is not None and x.events is not None:
        largest = at_events.abs().argmax(-1)
        place, value = _at(x.events, largest), _at(at_events, largest)
        entries.append((place, value if slope is None else torch.where(place == token, 0.0, value)))
        at_events = (at_events * scale).to(out.dtype)
    if not entries:
        return Result(statistics, at_events)
    places, values = (torch.stack(each, -1) for each in zip(*entries, strict=True))
    return Result(statistics, at_events, Kept(places, values / form.temperature))


def _at(values: Tensor, columns: Tensor) -> Tensor:
    """Return the entries [C] of values [C, E] at one column of each row."""
    return values.gather(-1, columns.unsqueeze(-1)).squeeze(-1)


def _along(values: Tensor, like: Tensor) -> Tensor:
    """Return values [C] with the dimensions of `like`, [C] or [C, E]."""
    return values if like.dim() == 1 else values.unsqueeze(-1)


def with_gradient(function: Callable[[Tensor], tuple[Tensor, Tensor]], inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return a function's values [C], its further output, and the gradient of the values' sum by its input."""
    found: Any = torch.func.vjp(function, inputs, has_aux=True)  # a compiled function cannot hold `autograd.grad`
    values, pull, more = found
    return values, more, pull(torch.ones_like(values))[0]


def _log_probs(logits: Tensor, event_logits: Tensor | None, temperature: float) -> tuple[Tensor, Tensor | None]:
    """Return log-probabilities [C, E] of the tokens, and [C, k + 1] of the events with all other tokens as the last one."""
    if event_logits is None:
        return log_probs(logits, temperature), None
    scaled = logits / temperature
    top = scaled.amax(-1, keepdim=True)
    shifted = scaled - top
    others = shifted.exp().sum(-1, keepdim=True).log() + top
    events = torch.cat([event_logits / temperature, others], -1)
    total = events.logsumexp(-1, keepdim=True)
    return (shifted - (total - top)).clamp(min=FLOOR), (events - total).clamp(min=FLOOR)


def _given_events(log_p: Tensor) -> Tensor:
    """Return the log-probabilities [C, k + 1] of events that a teacher gives [C, k], with all other tokens as the last one."""
    log_p = log_p.clamp(min=FLOOR)
    others = -torch.expm1(log_p.logsumexp(-1, keepdim=True).clamp(max=0.0))
    return torch.cat([log_p, others.clamp(min=torch.finfo(log_p.dtype).tiny).log()], -1)


def _entropy(log_p: Tensor, events: Tensor | None) -> Tensor:
    """Return the entropy [C] over the whole vocabulary."""
    of_tokens = (log_p.exp() * log_p).sum(-1)
    if events is not None:
        of_tokens = of_tokens + (events[:, :-1].exp() * events[:, :-1]).sum(-1)
    return -of_tokens


def _token_terms(
    form: Form, x: Chunk, log_y: Tensor, is_known: Tensor, statistics: dict[str, Tensor]
) -> tuple[Tensor | None, Tensor]:
    """Return the slope [C] of the loss by each token's log-probability, None without such terms, and their loss [C]."""
    slopes, loss = [], torch.zeros_like(log_y)
    if form.policy is not None and x.advantages is not None:
        policy, advantages = form.policy, x.advantages
        old = log_y if x.old_log_probs is None else x.old_log_probs
        losses, _, of_policy = with_gradient(lambda log_p: (policy(log_p, old, advantages), log_p.detach()), log_y)
        statistics["policy_loss"], statistics["policy_slope"] = losses, of_policy
        if x.policy is not None:
            slopes.append(x.policy * of_policy)
            loss = loss + x.policy * losses
    if x.nll is not None:
        slopes.append(-x.nll)
        loss = loss - x.nll * log_y
    if x.slopes is not None:
        slopes.append(x.slopes)
    return (torch.where(is_known, torch.stack(slopes).sum(0), 0.0) if slopes else None), loss


@functools.lru_cache(maxsize=64)
def compiled(function: Callable[..., Any], form: Any, rows: int, entries: int) -> Callable[..., Any]:
    """Return a function of one form, its first argument, compiled for chunks of one shape.

    The thresholds keep every [C, E] intermediate in registers: Inductor would else store a log ratio that is used
    twice, which costs a chunk's memory. The copy of the code object gives each form a limit of recompilations of its own.
    """

    def run(*tensors: Any) -> Any:
        return function(form, *tensors)

    code = run.__code__.replace(co_name=f"{function.__name__}_{rows}x{entries}")
    own = types.FunctionType(code, run.__globals__, code.co_name, run.__defaults__, run.__closure__)
    options: dict[str, Any] = {
        "realize_reads_threshold": 64,
        "realize_opcount_threshold": 1000,
        "split_reductions": False,
    }
    return torch.compile(own, dynamic=False, fullgraph=True, options=options)
