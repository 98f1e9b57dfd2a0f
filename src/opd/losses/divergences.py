"""The registry of divergences between the student's and the teacher's next-token distributions."""

import importlib
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

FLOOR = -1e30  # the log-probability of an impossible event: minus infinity times a probability of 0 would be nan

Params = Mapping[str, Any]
Function = Callable[[Tensor, Tensor, Tensor, Params], Tensor]
"""(log_s [T, E], log_t [T, E], ids [T], params) -> values [T]."""


class Unusable(ValueError):
    """A name or a parameter that cannot be used; its arguments are the value, the rule and the fix."""

    def __str__(self) -> str:
        return "{}: {}; {}".format(*self.args)


@dataclass(frozen=True, kw_only=True)
class Number:
    """A parameter of a divergence, required without a default: a number between two bounds, which a float excludes."""

    low: float
    high: float = math.inf
    default: float | None = None
    is_integer: bool = False
    reason: str = ""  # for the bounds, and the way around them

    def checked(self, kind: str, name: str, value: Any) -> float:
        is_number = isinstance(value, int if self.is_integer else int | float) and not isinstance(value, bool)
        if is_number and (self.low <= value if self.is_integer else self.low < value < self.high):
            number: float = value
            return number
        bounds = f"a whole number from {self.low:g}" if self.is_integer else f"{self.low:g} < {name} < {self.high:g}"
        raise Unusable(f"divergence {name}={value!r}", f"{kind} needs {bounds}, {self.reason}", f"choose such a {name}")


TOP_K = Number(low=1, is_integer=True, reason="the teacher's most likely tokens to compare one by one")
TEMPERATURE = Number(low=0, reason="and 1.0 leaves logits alone")


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """A registered divergence, or a user's own one. `params` is None where any parameters are allowed."""

    name: str
    function: Function
    params: Mapping[str, Number] | None = field(default_factory=dict)

    def checked(self, given: Params) -> dict[str, Any]:
        """Return the parameters with defaults filled in."""
        if self.params is None:
            return dict(given)
        known = {"top_k": TOP_K, **self.params}
        if unknown := given.keys() - known:
            rule, fix = f"divergence {self.name} has no parameter {min(unknown)!r}", f"use one of {', '.join(known)}"
            raise Unusable(f"parameters {dict(given)}", rule, fix)
        values = {name: of.default for name, of in self.params.items()} | dict(given)
        return {name: known[name].checked(self.name, name, value) for name, value in values.items()}


DIVERGENCES: dict[str, Divergence] = {}


def register_divergence(name: str, params: Mapping[str, Number] | None = None) -> Callable[[Function], Function]:
    """Return a decorator that registers a function of (log_s [T, E], log_t [T, E], ids [T], params) -> [T].

    Both sides are natural logarithms of normalised probabilities, `FLOOR` at the least. E is the vocabulary, or k + 1
    events, the last of which is all other tokens together. `ids` has the column of each sampled token, or -1 for a
    token outside the vocabulary. Autograd gives the gradient by `log_s`, so the function must be differentiable. It
    must be a function of its arguments alone, without reads from the device, because it is compiled on a GPU.
    """

    def register(function: Function) -> Function:
        DIVERGENCES[name] = Divergence(name=name, function=function, params=params or {})
        return function

    return register


def divergence_of(name: str) -> Divergence:
    """Return a registered divergence, or the function that `package.module:name` names."""
    if name in DIVERGENCES:
        return DIVERGENCES[name]
    return Divergence(name=name, function=own_function("divergence kind", name, DIVERGENCES), params=None)


def own_function(key: str, name: str, registered: Collection[str]) -> Callable[..., Any]:
    """Return the function that `package.module:name` names; errors tell the key and the registered names."""
    module, _, attribute = name.partition(":")
    if not attribute:
        fix = f"use one of {', '.join(registered)}, or a function of yours as package.module:name"
        raise Unusable(f"{key}={name!r}", "nothing is registered under this name", fix)
    try:
        function: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # the module's own code runs
        fix = "put the module's folder on PYTHONPATH and name a function of it"
        raise Unusable(f"{key}={name!r}", f"{type(error).__name__}: {error}", fix) from error
    if not callable(function):
        rule = f"{attribute} is {type(function).__name__}, not a function"
        raise Unusable(f"{key}={name!r}", rule, "name a function")
    return function


def compute_dtype(*tensors: Tensor) -> torch.dtype:
    """Return float64 where any input is float64, else float32."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def log_probs(logits: Tensor, temperature: float) -> Tensor:
    """Return log softmax(logits / temperature) over the last dimension, `FLOOR` at the least."""
    scaled = logits if temperature == 1.0 else logits / temperature
    return torch.log_softmax(scaled, dim=-1).clamp(min=FLOOR)


def pick(values: Tensor, ids: Tensor) -> Tensor:
    """Return the entry [T] of each row of [T, E] at its column [T], 0 where no column has that number.

    A comparison in place of a gather, because the gradient of a gather makes one more tensor of [T, E].
    """
    columns = torch.arange(values.shape[-1], device=values.device)
    return torch.where(columns == ids.unsqueeze(-1), values, 0.0).sum(-1)


def kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return KL(p || q) [T] of log-probabilities [T, E], with full precision where p and q are close.

    Both sides sum to one, so the sum of p r is the sum of p r + q - p, r = log p - log q. Its terms are p phi(r) with
    phi(r) = exp(-r) - 1 + r, which is >= 0 and has a series without subtractions near 0. The slopes are p r by log p
    and q - p by log q: autograd through the series would only add rounding.
    """
    p, q, r = log_p.exp(), log_q.exp(), log_p - log_q
    is_near, phi = _is_near(r, 0.5), _phi(r)
    value = torch.where(is_near, p * phi, q - p + p * r)
    slope_q = torch.where(is_near, p * (phi - r), q - p)
    value, slope_p, slope_q = value.detach(), (p * r).detach(), slope_q.detach()
    return (value + slope_p * (log_p - log_p.detach()) + slope_q * (log_q - log_q.detach())).sum(-1)


def _is_near(r: Tensor, bound: float) -> Tensor:
    """Return True where the series of `_phi` is exact in r's dtype."""
    return r.abs() < (0.01 if r.dtype == torch.float64 else bound)


def _phi(r: Tensor) -> Tensor:
    """Return exp(-r) - 1 + r near 0."""
    return r * r * (1 / 2 - r * (1 / 6 - r * (1 / 24 - r * (1 / 120 - r * (1 / 720 - r * (1 / 5040 - r / 40320))))))


@register_divergence("reverse_kl")
def reverse_kl(log_s: Tensor, log_t: Tensor, ids: Tensor, params: Params) -> Tensor:
    """Return KL(p_S || p_T)."""
    return kl(log_s, log_t)


@register_divergence("forward_kl")
def forward_kl(log_s: Tensor, log_t: Tensor, ids: Tensor, params: Params) -> Tensor:
    """Return KL(p_T || p_S)."""
    return kl(log_t, log_s)


@register_divergence(
    "jsd", {"beta": Number(low=0, high=1, reason="because at 0 and 1 it is 0; use reverse_kl or forward_kl there")}
)
def jsd(log_s: Tensor, log_t: Tensor, ids: Tensor, params: Params) -> Tensor:
    """Return beta KL(p_T || m) + (1 - beta) KL(p_S || m) with m = beta p_T + (1 - beta) p_S.

    Let d = log p_T - log p_S and u = log(m / p_S) = log(1 - beta + beta exp(d)). Then a term is
    beta p_T (d - u) - (1 - beta) p_S u: one logarithm of each token. Near d = 0 it is a sum of two series, as in `kl`.
    The gradient through m is the sum over entries of m d log m = dm, which is 0. Beyond d = 80, p_S is 0 in float32.
    """
    beta: float = params["beta"]
    p_s, p_t, d = log_s.exp(), log_t.exp(), (log_t - log_s).clamp(max=80.0)
    u = (1.0 - beta + beta * d.exp()).log()
    near = beta * p_t * _phi(d - u) + (1.0 - beta) * p_s * _phi(-u)
    value = torch.where(_is_near(d, 0.5), near, beta * p_t * (d - u) - (1.0 - beta) * p_s * u).detach()
    slope = ((beta - 1.0) * p_s * u).detach()
    return (value + slope * (log_s - log_s.detach())).sum(-1)


@register_divergence(
    "skew_kl", {"skew": Number(low=0, high=1, default=0.1, reason="the teacher's part of the mixture")}
)
def skew_kl(log_s: Tensor, log_t: Tensor, ids: Tensor, params: Params) -> Tensor:
    """Return KL(p_T || skew p_T + (1 - skew) p_S), DistiLLM's skewed forward KL."""
    skew: float = params["skew"]
    return kl(log_t, torch.logaddexp(log_t + math.log(skew), log_s + math.log1p(-skew)))


@register_divergence("akl", {"mu": Number(low=0, high=1, default=0.5, reason="the probability of the teacher's head")})
def akl(log_s: Tensor, log_t: Tensor, ids: Tensor, params: Params) -> Tensor:
    """Return the adaptive KL: forward and reverse KL, each weighted by a part of the two sides' difference.

    The forward KL has the part in the teacher's head, its most likely tokens up to the probability `mu`, at least one.
    The reverse KL has the rest. The weights have no gradient.
    """
    p_t, order = log_t.exp().sort(dim=-1, descending=True)
    gaps = (p_t - log_s.detach().exp().gather(-1, order)).abs()
    is_head = p_t.cumsum(-1) <= params["mu"]
    is_head[..., 0] = True
    head, whole = (gaps * is_head).sum(-1), gaps.sum(-1)
    share = torch.where(whole > 0, head / whole.clamp(min=torch.finfo(whole.dtype).tiny), 0.5)
    return share * kl(log_t, log_s) + (1.0 - share) * kl(log_s, log_t)


@register_divergence(
    "sampled_reverse_kl", {"baseline": Number(low=0, is_integer=True, default=1, reason="1: the reverse KL; 0: none")}
)
def sampled_reverse_kl(log_s: Tensor, log_t: Tensor, ids: Tensor, params: Params) -> Tensor:
    """Return a(y) = log p_S(y) - log p_T(y) of the sampled token y, an estimate of the reverse KL to compare with it.

    The gradient is (a(y) - D) d log p_S(y) with D = KL(p_S || p_T) as the baseline. Its mean over y ~ p_S is dD, also
    with `baseline: 0`, where a(y) needs no other token of the teacher.
    """
    log_y = pick(log_s, ids)
    value = (log_y - pick(log_t, ids)).detach()
    slope = value - kl(log_s, log_t).detach() if params["baseline"] else value
    return value + slope * (log_y - log_y.detach())


@register_divergence("topk_reverse_kl", {"top_k": TOP_K})
def topk_reverse_kl(log_s: Tensor, log_t: Tensor, ids: Tensor, params: Params) -> Tensor:
    """Return the reverse KL over k + 1 events: the teacher's `top_k` most likely tokens, and all others as one."""
    return kl(log_s, log_t)


def divergence(
    student_logits: Tensor, teacher_logits: Tensor, kind: str, *, temperature: float = 1.0, **params: Any
) -> Tensor:
    """Return the divergence [T] of logits [T, V], in nats, under plain autograd. Training uses `head_loss`.

    Both logits are divided by the temperature, without a factor temperature ** 2. The teacher receives no gradient.
    `params` that the kind lacks are ignored, for loops over kinds; `ids` [T] int64 are the sampled tokens.
    """
    found = divergence_of(kind)
    ids = params.pop("ids", torch.zeros(student_logits.shape[:-1], dtype=torch.int64, device=student_logits.device))
    if student_logits.shape != teacher_logits.shape:
        shapes = f"student_logits {tuple(student_logits.shape)} and teacher_logits {tuple(teacher_logits.shape)}"
        raise ValueError(f"{shapes}: must have the same shape; cut both to the tokenizer's entries first")
    known = params if found.params is None else {name: params[name] for name in found.params if name in params}
    checked = found.checked(known)
    if "top_k" in checked or "top_k" in params:
        raise ValueError(f"divergence {kind} with top_k: only `head_loss` makes events of the teacher's tokens")
    TEMPERATURE.checked("the softmax", "temperature", temperature)
    dtype = compute_dtype(student_logits, teacher_logits)
    student, teacher = (log_probs(each.to(dtype), temperature) for each in (student_logits, teacher_logits.detach()))
    return found.function(student, teacher, ids, checked)
