"""Random heads and hidden states for `head_loss`, and its loss by plain formulas under autograd in float64."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from opd.losses import HiddenTargets, Loss, Output, Weights, head_loss

TOKENS, VOCAB, WIDTHS = 23, 333, (24, 40)
KINDS: dict[str, dict[str, Any]] = {
    "reverse_kl": {},
    "forward_kl": {},
    "jsd": {"beta": 0.3},
    "skew_kl": {"skew": 0.2},
    "akl": {"mu": 0.6},
    "sampled_reverse_kl": {"baseline": 1},
    "topk_reverse_kl": {"top_k": 5},
}


class Case(NamedTuple):
    hidden: Tensor
    weight: Tensor
    targets: HiddenTargets
    ids: Tensor

    def grad(self) -> tuple[Tensor, Tensor]:
        assert self.hidden.grad is not None
        assert self.weight.grad is not None
        return self.hidden.grad, self.weight.grad

    def changed(self, dtype: torch.dtype) -> Case:
        """Return fresh leaves of the same values."""
        hidden, weight = (each.detach().to(dtype, copy=True).requires_grad_() for each in (self.hidden, self.weight))
        return Case(hidden, weight, HiddenTargets(*(each.to(dtype) for each in self.targets)), self.ids)


def make(
    tokens: int = TOKENS, rows: tuple[int, int] = (VOCAB, VOCAB), scale: float = 1.0, dtype: torch.dtype = torch.float64
) -> Case:
    """Return random inputs; `rows` of the two heads, of which the first `VOCAB` count."""
    made = torch.Generator().manual_seed(0)

    def normal(*shape: int, by: float = 1.0) -> Tensor:
        return (by * torch.randn(*shape, generator=made, dtype=torch.float64)).to(dtype)

    sides = [
        (normal(tokens, width, by=scale), normal(count, width, by=width**-0.5))
        for count, width in zip(rows, WIDTHS, strict=True)
    ]
    ids = torch.randint(0, VOCAB, (tokens,), generator=made)
    return Case(sides[0][0].requires_grad_(), sides[0][1].requires_grad_(), HiddenTargets(*sides[1]), ids)


def draw(tokens: int, seed: int) -> Tensor:
    return torch.rand(tokens, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def clipped(log_p: Tensor, old: Tensor, advantages: Tensor) -> Tensor:
    ratio = (log_p - old).exp()
    return torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2))


def run(case: Case, kind: str = "reverse_kl", weights: Weights | None = None, **options: Any) -> Output:
    """Return the output for a kind of `KINDS`; None means random weights of the divergence."""
    loss = Loss(kind, KINDS[kind], options.pop("temperature", 1.0), clipped)
    weights = weights or Weights(divergence=draw(len(case.ids), 1))
    options = {"chunk": 7, "valid_vocab": VOCAB, "targets": case.targets, **options}
    return head_loss(case.hidden, case.weight, case.ids, weights, loss, **options)


def divergence_by_hand(kind: str, log_s: Tensor, log_t: Tensor, ids: Tensor) -> Tensor:
    """Return each token's divergence by its formula; of the sampled one a surrogate with its gradient."""

    def kl(log_p: Tensor, log_q: Tensor) -> Tensor:
        return (log_p.exp() * (log_p - log_q)).sum(-1)

    params, p_s, p_t = KINDS[kind], log_s.exp(), log_t.exp()
    if kind == "jsd":
        b = params["beta"]
        log_m = (b * p_t + (1 - b) * p_s).log()
        return b * kl(log_t, log_m) + (1 - b) * kl(log_s, log_m)
    if kind == "skew_kl":
        return kl(log_t, (params["skew"] * p_t + (1 - params["skew"]) * p_s).log())
    if kind == "akl":
        shares = []
        for s, t in zip(p_s.detach(), p_t, strict=True):
            order = t.argsort(descending=True)
            head = order[: max(int((t[order].cumsum(0) <= params["mu"]).sum()), 1)]
            shares.append((s - t)[head].abs().sum() / (s - t).abs().sum())
        share = torch.stack(shares)
        return share * kl(log_t, log_s) + (1 - share) * kl(log_s, log_t)
    if kind == "sampled_reverse_kl":
        own, other = (side.gather(1, ids[:, None]).squeeze(1) for side in (log_s, log_t))
        value = (own - other).detach()
        return value + (value - kl(log_s, log_t).detach()) * (own - own.detach())
    if kind == "topk_reverse_kl":
        top = log_t.topk(params["top_k"]).indices
        events = [torch.cat([p.gather(1, top), 1 - p.gather(1, top).sum(1, keepdim=True)], 1) for p in (p_s, p_t)]
        return kl(events[0].log(), events[1].log())
    return kl(log_t, log_s) if kind == "forward_kl" else kl(log_s, log_t)


class Expected(NamedTuple):
    loss: Tensor
    statistics: dict[str, Tensor]
    grad: tuple[Tensor, Tensor]


def expected(
    case: Case,
    kind: str = "reverse_kl",
    weights: Weights | None = None,
    *,
    temperature: float = 1.0,
    advantages: Tensor | None = None,
    old_log_probs: Tensor | None = None,
) -> Expected:
    """Return the loss, its statistics and both gradients by plain formulas in float64."""
    wide, weights = case.changed(torch.float64), weights or Weights(divergence=draw(len(case.ids), 1))
    log_s = (wide.hidden @ wide.weight[:VOCAB].T / temperature).log_softmax(-1)
    log_t = (wide.targets.hidden @ wide.targets.weight[:VOCAB].T / temperature).log_softmax(-1)
    log_p, log_p_t = (side.gather(1, case.ids[:, None]).squeeze(1) for side in (log_s, log_t))
    statistics = {"divergence": divergence_by_hand(kind, log_s, log_t, case.ids), "log_prob": log_p}
    statistics |= {"entropy": -(log_s.exp() * log_s).sum(-1), "teacher_entropy": -(log_t.exp() * log_t).sum(-1)}
    terms = {"divergence": statistics["divergence"], "nll": -log_p, "entropy": -statistics["entropy"]}
    if advantages is not None:
        statistics["policy_loss"] = terms["policy"] = clipped(
            log_p, log_p.detach() if old_log_probs is None else old_log_probs, advantages
        )
    loss = sum((w * terms[name]).sum() for name, w in weights._asdict().items() if w is not None)
    assert isinstance(loss, Tensor)
    loss.backward()
    statistics["teacher_log_prob"] = log_p_t
    return Expected(loss.detach(), {name: each.detach() for name, each in statistics.items()}, wide.grad())


def error(found: Tensor, exact: Tensor) -> float:
    """Return the relative error."""
    found, exact = found.detach().double(), exact.detach()
    return float((found - exact).norm() / exact.norm())
