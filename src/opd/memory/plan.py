"""The choice of what stays on the device: all that fits, and first what costs most to do without."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from opd.memory.job import Job
from opd.memory.phases import Choice, Phase, phases_of

SHARES = (1.0, 0.7, 0.5, 0.35)
"""Shares of a compiled layer's activations that a plan tries; below a third the backward makes products again."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One choice and the bytes of its phases."""

    job: Job
    choice: Choice
    phases: tuple[Phase, ...]

    @property
    def excess(self) -> tuple[int, ...]:
        """Return the bytes of each phase beyond the device's memory."""
        room = self.job.device_bytes
        return tuple(0 if room is None else max(0, phase.total - room) for phase in self.phases)

    @property
    def fits(self) -> bool:
        """Return True if every phase is within the device's memory, or that is not known."""
        return not any(self.excess)

    @property
    def peak(self) -> Phase:
        return max(self.phases, key=lambda phase: phase.total)

    @property
    def host_bytes(self) -> int:
        """Return the bytes of hidden states that wait in pinned host memory, at the longest responses."""
        return self.job.hidden_bytes - min(self.choice.cache_bytes, self.job.hidden_bytes)


def make_plan(job: Job) -> Plan:
    """Return the plan of a job: nothing is offloaded that fits, and every wish of the job is kept.

    It begins with the least memory and takes back, in the order of `_WORTH`, what makes no phase exceed more.
    """
    plan = _plan(job, _least(job))
    for better in _WORTH:
        tried = (_plan(job, choice) for choice in better(job, plan.choice))
        plan = next((new for new in tried if all(map(int.__le__, new.excess, plan.excess))), plan)
    return plan


def _plan(job: Job, choice: Choice) -> Plan:
    """Return the plan of a choice; over one micro-batch an update nothing is summed or kept gathered."""
    if job.mini_rows * job.row_tokens <= choice.train_tokens:
        choice = replace(choice, defer_sync=False, keep_gathered=False)
    return Plan(job=job, choice=choice, phases=phases_of(job, choice))


def _least(job: Job) -> Choice:
    checkpointing, share = _activations(job)[-1]
    return Choice(
        offload_teacher=job.offload_teacher is not False,
        offload_params=job.offload_params is not False,
        offload_optimizer=job.offload_optimizer is not False,
        checkpointing=checkpointing,
        activation_share=share,
        score_tokens=min(job.score_tokens, job.teacher_row_tokens) if job.score_is_planned else job.score_tokens,
        train_tokens=job.train_tokens if job.least_train_tokens is None else min(job.train_tokens, job.row_tokens),
    )


def _activations(job: Job) -> list[tuple[bool, float]]:
    """Return (checkpointing, share kept) of each way to keep activations that the wishes allow, the fastest first."""
    kept = [(False, share) for share in (SHARES if job.compiled else SHARES[:1])]
    # A layer that is computed again keeps what it makes: to recompute it in part once more would save nothing.
    again = (True, SHARES[0])
    if job.checkpointing is None:
        # The bytes that a mixture of experts keeps are not known well enough.
        return [again] if job.student.num_experts else [*kept, again]
    return [again] if job.checkpointing else kept


def _cached(job: Job, choice: Choice) -> Iterator[Choice]:
    """Yield the choice with as many hidden states on the device as there is room for."""
    phases = [phase for phase in phases_of(job, replace(choice, cache_bytes=1)) if "hidden states" in phase.parts]
    wanted = job.hidden_bytes
    if phases and job.device_bytes is not None:
        wanted = max(0, min(wanted, job.device_bytes + 1 - max(phase.total for phase in phases)))
    yield replace(choice, cache_bytes=wanted)


def _longer(choice: Choice, name: str, most: int) -> Iterator[Choice]:
    """Yield the choice with `most` tokens and its halves, as long as they are above the tokens that it has."""
    fields: dict[str, Any] = {name: most}
    while fields[name] > getattr(choice, name):
        yield replace(choice, **fields)
        fields[name] //= 2


def _without(name: str) -> Callable[[Job, Choice], Iterable[Choice]]:
    return lambda job, choice: [replace(choice, **{name: False})] if getattr(job, name) is None else []


# In micro-batches of a row or two the device waits for the host. Moving weights or moments makes it wait, the more bytes the
# longer. Checkpointing makes the layers' products again. Hidden states in pinned memory, gathering and reducing per
# micro-batch happen while the device computes; longer micro-batches and forwards bring the least (tests/benchmarks/gpu/NOTES.md).
_WORTH: tuple[Callable[[Job, Choice], Iterable[Choice]], ...] = (
    lambda job, choice: _longer(choice, "train_tokens", job.least_train_tokens or job.train_tokens),
    _without("offload_params"),
    _without("offload_optimizer"),
    _without("offload_teacher"),
    lambda job, choice: [replace(choice, checkpointing=on, activation_share=of) for on, of in _activations(job)],
    lambda job, choice: [replace(choice, defer_sync=True)],
    lambda job, choice: [replace(choice, keep_gathered=choice.defer_sync)],
    _cached,
    lambda job, choice: _longer(choice, "train_tokens", job.train_tokens),
    lambda job, choice: _longer(choice, "score_tokens", job.score_tokens),
)
