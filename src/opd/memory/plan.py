"""The choice of what stays on the device: all that fits, and first what costs most to do without."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from opd.memory.job import GIB, Job
from opd.memory.phases import Choice, Phase, phases_of

SHARES = (1.0, 0.7, 0.5, 0.35)
"""Shares of a compiled layer's activations that a plan tries; below a third the backward makes products again."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One choice and the bytes of its phases.

    Attributes:
        knobs: of a plan that does not fit: keys to change, each with its effect.
    """

    job: Job
    choice: Choice
    phases: tuple[Phase, ...]
    knobs: tuple[str, ...] = ()

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
        """Return the largest phase."""
        return max(self.phases, key=lambda phase: phase.total)

    @property
    def host_bytes(self) -> int:
        """Return the bytes of hidden states that wait in pinned host memory, at the longest responses."""
        return self.job.hidden_bytes - min(self.choice.cache_bytes, self.job.hidden_bytes)


def make_plan(job: Job) -> Plan:
    """Return the plan of a job: nothing is offloaded that fits, and every wish of the job is kept."""
    plan = _filled(job)
    return plan if plan.fits else replace(plan, knobs=tuple(_knobs(plan)))


def _filled(job: Job) -> Plan:
    """Return the plan that begins with the least memory and takes back, in the order of `_WORTH`, what makes no phase exceed more."""
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
        defer_sync=False,
        keep_gathered=False,
        cache_bytes=0,
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


def _halved(most: int, least: int) -> Iterator[int]:
    """Yield `most` and its halves, as long as they are above `least`, and `least`."""
    while most > least:
        yield most
        most //= 2
    yield least


def _without(name: str) -> Callable[[Job, Choice], Iterable[Choice]]:
    return lambda job, choice: [replace(choice, **{name: False})] if getattr(job, name) is None else []


# In micro-batches of a row or two the device waits for the host. Moving weights or moments makes it wait, the more bytes the
# longer. Checkpointing makes the layers' products again. Hidden states in pinned memory, gathering and reducing per
# micro-batch happen while the device computes; longer micro-batches and forwards bring the least (tests/benchmarks/gpu/NOTES.md).
_WORTH: tuple[Callable[[Job, Choice], Iterable[Choice]], ...] = (
    lambda job, choice: (
        replace(choice, train_tokens=tokens)
        for tokens in _halved(min(job.train_tokens, job.least_train_tokens or job.train_tokens), choice.train_tokens)
    ),
    _without("offload_params"),
    _without("offload_optimizer"),
    _without("offload_teacher"),
    lambda job, choice: (
        replace(choice, checkpointing=again, activation_share=share) for again, share in _activations(job)
    ),
    lambda job, choice: [replace(choice, defer_sync=True)],
    lambda job, choice: [replace(choice, keep_gathered=choice.defer_sync)],
    _cached,
    lambda job, choice: (
        replace(choice, train_tokens=tokens) for tokens in _halved(job.train_tokens, choice.train_tokens)
    ),
    lambda job, choice: (
        replace(choice, score_tokens=tokens) for tokens in _halved(job.score_tokens, choice.score_tokens)
    ),
)


def _knobs(plan: Plan) -> Iterator[str]:
    """Yield every change that alone makes the plan fit; where none does, those that shrink a phase that does not fit."""
    tried = [(name, _filled(replace(plan.job, **changed))) for name, changed in _changes(plan)]
    if enough := [f"{name}: fits" for name, after in tried if after.fits]:
        yield from enough
        return
    for name, after in tried:
        for old, new, excess in zip(plan.phases, after.phases, plan.excess, strict=True):
            if (saved := min(excess, old.total - new.total)) > 0:
                yield f"{name}: {saved / GIB:.1f} GiB less in the phase `{old.name}`"


def _changes(plan: Plan) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield keys of a spec that change what is on the device, with the change of the job, by how little they cost."""
    job = plan.job
    refused = {"teacher.offload": "offload_teacher", "actor.optimizer_offload": "offload_optimizer",
               "actor.param_offload": "offload_params", "actor.gradient_checkpointing": "checkpointing"}  # fmt: skip
    yield from ((f"{key}: auto", {name: None}) for key, name in refused.items() if getattr(job, name) is False)
    if job.rollout_share and not job.rollout_sleeps:
        yield "rollout.free_cache_engine: true", {"rollout_sleeps": True}
    if job.rollout_share and plan.excess[0]:  # the largest tenth with which the server's own phase fits
        others = plan.phases[0].total - plan.phases[0].parts["rollout server"]
        share = max(2, int(10 * (1 - others / (job.device_bytes or 1)))) / 10
        yield f"rollout.gpu_memory_utilization: {share}", {"rollout_share": share}
    row, read = job.row_tokens, job.teacher_row_tokens
    if job.train_tokens > row and job.least_train_tokens is None:
        keys = (
            "opd.train_tokens, or actor.ppo_micro_batch_size_per_gpu (with use_dynamic_bsz ppo_max_token_len_per_gpu)"
        )
        yield f"{keys}: one row, {row} tokens instead of {job.train_tokens}", {"train_tokens": row}
    if job.score_tokens > read and not job.score_is_planned:
        yield f"opd.read_tokens: {read} instead of {job.score_tokens}", {"score_tokens": read}
    if job.workspace_bytes > GIB // 2:
        yield "opd.workspace_gib: 0.5", {"workspace_bytes": GIB // 2}
    doubled = {"num_ranks": 2 * job.num_ranks, "rows_per_step": -(-job.rows_per_step // 2)}
    yield f"trainer.gpus_per_node or nnodes: {2 * job.num_ranks} ranks instead of {job.num_ranks}", doubled
