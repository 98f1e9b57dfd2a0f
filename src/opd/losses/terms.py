"""The terms of the loss: their weights, their targets, and everything else that one call of the head's loss needs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from opd.losses.divergences import TEMPERATURE, Divergence, divergence_of

PolicyLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(log p, old log p, advantages), [T] each -> losses [T]. Differentiable, and local: a token's loss needs no other token."""
STATISTICS = ("entropy", "teacher_entropy")  # they cost time and are computed on request


@dataclass(frozen=True)
class Loss:
    """The loss of each token. Create one object per run or stage: a new policy function is compiled anew.

    Args:
        kind: a name of `DIVERGENCES`, or `package.module:name`; the divergence from the teacher.
        params: the divergence's parameters. `top_k` goes with every kind: over k + 1 events, the teacher's k most
            likely tokens and all others as one.
        temperature: divides both sides' logits, for every term.
        policy: the policy loss. None means no loss that is local to a token.
    """

    kind: str = "reverse_kl"
    params: Mapping[str, Any] = field(default_factory=dict)
    temperature: float = 1.0
    policy: PolicyLoss | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "params", self.divergence.checked(self.params))
        TEMPERATURE.checked("the softmax", "temperature", self.temperature)

    @property
    def divergence(self) -> Divergence:
        """Return the divergence that `kind` names."""
        return divergence_of(self.kind)

    @property
    def top_k(self) -> int:
        """Return the number of the teacher's tokens that are events of their own. 0 means the whole vocabulary."""
        return int(self.params.get("top_k") or 0)


class Weights(NamedTuple):
    """One weight per token and term, [T] each. None means that the loss lacks the term.

    The loss is the sum over tokens of divergence D + policy L - nll log p - entropy H. No weight is normalised here:
    the caller divides once, by the global count.
    """

    divergence: Tensor | None = None
    policy: Tensor | None = None
    nll: Tensor | None = None
    entropy: Tensor | None = None


class HiddenTargets(NamedTuple):
    """A teacher's hidden states [T, d_T] after its final norm, and its head [V_T, d_T] without a bias."""

    hidden: Tensor
    weight: Tensor


class EventTargets(NamedTuple):
    """A teacher's log-probabilities [T, k] of tokens `ids` [T, k], different ones in each row. All others are one event."""

    ids: Tensor
    log_probs: Tensor


Targets = HiddenTargets | EventTargets


class Output(NamedTuple):
    """The loss of one call. A tuple, because FSDP looks for tensors with a graph in tuples, lists and dicts only.

    Attributes:
        loss: scalar, the weighted sum, with a graph whose backward can run once.
        statistics: [T] each, detached, by name: `log_prob` and `nonfinite` always. Targets add `divergence`, hidden
            states `teacher_log_prob`. A policy loss adds `policy_loss` and its derivative `policy_slope` by log p. On
            request `entropy` and `teacher_entropy`. A token outside the vocabulary has log-probability minus infinity.
        backend: the form that ran.
    """

    loss: Tensor
    statistics: dict[str, Tensor]
    backend: str = "plain"

    @property
    def scores(self) -> Tensor:
        """Return the divergence [T], nan where a row is not finite, so that no score chooses such a token."""
        return self.statistics["divergence"].masked_fill(self.statistics["nonfinite"], torch.nan)

    @classmethod
    def joined(cls, parts: "Sequence[Output]", places: Sequence[Tensor]) -> "Output":
        """Return the output of all tokens from parts that share none; places [T_i] int64 are a part's tokens among all."""
        order = torch.cat(list(places)).argsort()
        names = [name for name in parts[0].statistics if all(name in part.statistics for part in parts)]
        statistics = {name: torch.cat([part.statistics[name] for part in parts])[order] for name in names}
        return cls(torch.stack([part.loss for part in parts]).sum(), statistics, parts[0].backend)


@dataclass(frozen=True)
class Request:
    """One call of `head_loss`: its arguments besides the student's hidden states and head; `vocab` entries count."""

    ids: Tensor
    weights: Weights
    loss: Loss
    vocab: int
    targets: Targets | None = None
    advantages: Tensor | None = None
    old_log_probs: Tensor | None = None
    slopes: Tensor | None = None
    chunk: int | None = None
    workspace_gib: float | None = None
    watch: tuple[str, ...] = ()

    @property
    def per_token(self) -> dict[str, Tensor | None]:
        """Return the inputs of one number per token, by name."""
        more = {"advantages": self.advantages, "old_log_probs": self.old_log_probs, "slopes": self.slopes}
        return self.weights._asdict() | more

    def check(self, hidden: Tensor) -> None:
        """Refuse a call that lacks an input of one of its terms, or whose inputs differ in length."""
        targets, top_k = self.targets, self.loss.top_k
        of_targets = None if targets is None else targets[0]
        given = {"hidden": hidden, "ids": self.ids, "targets": of_targets, **self.per_token}
        lengths = {name: len(tensor) for name, tensor in given.items() if tensor is not None}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"tokens {lengths}: every per-token input must have the same length T")
        if self.weights.divergence is not None and targets is None:
            raise ValueError("targets=None with weights of the divergence: give HiddenTargets or EventTargets")
        if self.weights.policy is not None and (self.loss.policy is None or self.advantages is None):
            raise ValueError("weights of the policy lack a policy loss or advantages: give Loss.policy and advantages")
        if self.chunk is not None and self.chunk < 1:
            raise ValueError(f"chunk={self.chunk}: must be at least 1 token")
        allowed = STATISTICS if isinstance(targets, HiddenTargets) else STATISTICS[:1]
        if unknown := set(self.watch) - set(allowed):
            of = f"with targets of {type(targets).__name__}: must be of {', '.join(allowed)}"
            raise ValueError(f"watch={sorted(unknown)} {of}")
        if isinstance(targets, EventTargets) and top_k:
            raise ValueError(f"top_k={top_k} with EventTargets: the targets have their own events; leave it out")


def counted_vocab(student_vocab: int, targets: Targets | None, valid_vocab: int | None) -> int:
    """Return the number of leading vocabulary entries that count on both sides."""
    teacher_vocab = len(targets.weight) if isinstance(targets, HiddenTargets) else student_vocab
    given = student_vocab if valid_vocab is None and student_vocab == teacher_vocab else valid_vocab
    smaller, sizes = min(student_vocab, teacher_vocab), f"{student_vocab} (student) and {teacher_vocab} (teacher)"
    if given is None or not 1 <= given <= smaller:
        fix = f"give the number of the tokenizer's entries, between 1 and {smaller}"
        raise ValueError(f"valid_vocab={valid_vocab} with heads of {sizes} entries: {fix}")
    return given


def reward_weights(rewards: Tensor, uids: Sequence[str] | np.ndarray, *, beta: float) -> Tensor:
    """Return row weights [R] n softmax(r / beta) within each prompt's group of n rows: mean 1 in every group.

    Args:
        rewards: [R] one scalar reward a row. uids: [R] the prompt of each row.
        beta: softmax temperature, > 0; large is uniform, small puts all weight on the best rows.
    """
    if not 0.0 < beta < float("inf"):
        raise ValueError(f"reward_beta={beta!r}: must be positive and finite; leave it unset for equal weights")
    if len(rewards) != len(uids):
        raise ValueError(f"rewards ({len(rewards)}) and uids ({len(uids)}): one entry a row")
    values, rows_of = rewards.detach().double().cpu(), dict[str, list[int]]()
    for row, uid in enumerate(uids):
        rows_of.setdefault(str(uid), []).append(row)
    if bad := [uid for uid, rows in rows_of.items() if not torch.isfinite(values[rows]).all()]:
        fix = "a failed scorer must give a number, or its row be dropped"
        raise ValueError(f"rewards: not finite for prompts {bad[:5]}; {fix}")
    weights = torch.empty_like(values)
    for rows in rows_of.values():
        weights[rows] = len(rows) * torch.softmax(values[rows] / beta, 0)
    return weights.to(device=rewards.device, dtype=torch.float32)
