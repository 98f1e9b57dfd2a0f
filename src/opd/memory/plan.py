"""Chooses what stays on the device: all of it while it fits; else what costs least to move is offloaded first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from opd.memory.job import GIB, Job
from opd.memory.phases import Choice, Phase, moments_bytes, params_bytes, phases_of

# What is given up, in this order: short forwards gather weights more often; micro-batches down to those that the host can still
# launch in time; kept activations are worth a tenth of the
# student's phase down to a third of them; gathering and reducing per micro-batch and hidden states in pinned memory hide
# behind computing; checkpointing makes the layers' products again; moving weights or moments makes the device wait, the more
# bytes the longer; in micro-batches of a row or two the device waits for the host (measured: tests/benchmarks/gpu/NOTES.md).
_LEVERS = (
    "score_tokens", "train_tokens", "activation_share", "keep_gathered", "defer_sync", "cache_bytes", "checkpointing", "offload_teacher",
    "offload_optimizer", "offload_params", "rows",
)  # fmt: skip
SHARES = (1.0, 0.7, 0.5, 0.35)
"""Shares of a compiled layer's activations that a plan tries; below a third products are made again."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One choice and the bytes of its phases.

    Attributes:
        fits: every phase is within the device's memory, or that is not known.
        knobs: where it does not fit: what to change, each with what it brings.
    """

    job: Job
    choice: Choice
    phases: tuple[Phase, ...]
    knobs: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        return _fits(self.job, self.phases)

    @property
    def peak(self) -> Phase:
        """The largest phase."""
        return max(self.phases, key=lambda phase: phase.total)

    @property
    def host_bytes(self) -> int:
        """Hidden states that wait in pinned host memory, at the longest responses."""
        return self.job.hidden_bytes - min(self.choice.cache_bytes, self.job.hidden_bytes)


def checkpoint_bytes(job: Job) -> int:
    """A rank's part of a checkpoint, which `checkpoint.overlap` keeps a copy of in host memory."""
    return params_bytes(job) + moments_bytes(job)


def make_plan(job: Job) -> Plan:
    """The plan of a job: nothing is offloaded that fits; a wish of the job is never overruled."""
    plan = _relaxed(job)
    if plan.fits:
        return plan
    return replace(plan, knobs=tuple(_knobs(job, plan)))


def _relaxed(job: Job) -> Plan:
    choice = _everything(job)
    while True:
        phases = phases_of(job, choice)
        better = _give_up_one(job, choice, phases)
        if better is None:
            return Plan(job=job, choice=(final := _refilled(job, choice)), phases=phases_of(job, final))
        choice = better


def _everything(job: Job) -> Choice:
    """The fastest choice that the job's wishes allow."""
    several = _sums_updates(job, job.train_tokens)
    return Choice(
        offload_teacher=bool(job.offload_teacher),
        offload_params=bool(job.offload_params),
        offload_optimizer=bool(job.offload_optimizer),
        defer_sync=several,
        keep_gathered=several,
        cache_bytes=_wanted_cache(job),
        # What a mixture of experts keeps is not known well enough.
        checkpointing=job.student.num_experts > 0 if job.checkpointing is None else job.checkpointing,
        activation_share=SHARES[0] if job.activation_share is None else job.activation_share,
        score_tokens=job.score_tokens,
        train_tokens=job.train_tokens,
    )


def _sums_updates(job: Job, train_tokens: int) -> bool:
    """Return True if an update has several micro-batches, over which gradients are summed and weights stay gathered."""
    return job.num_micro_batches(train_tokens) > 1


def _wanted_cache(job: Job) -> int:
    return job.hidden_bytes if job.cache_bytes is None else min(job.cache_bytes, job.hidden_bytes)


def _give_up_one(job: Job, choice: Choice, phases: tuple[Phase, ...]) -> Choice | None:
    """The choice with the first lever pulled that shrinks a phase that does not fit; None if there is none."""
    for lever in _LEVERS:
        pulled = _pulled(job, choice, lever, phases)
        if pulled == choice:
            continue
        after = phases_of(job, pulled)
        if any(_excess(job, old) and new.total < old.total for old, new in zip(phases, after, strict=True)):
            return pulled
    return None


def _pulled(job: Job, choice: Choice, lever: str, phases: tuple[Phase, ...]) -> Choice:
    if lever == "score_tokens" and job.score_is_planned:
        return replace(choice, score_tokens=max(job.teacher_row_tokens or job.row_tokens, choice.score_tokens // 2))
    if lever in ("train_tokens", "rows") and job.least_train_tokens is not None:
        least = job.row_tokens if lever == "rows" else max(job.row_tokens, job.least_train_tokens)
        return replace(choice, train_tokens=min(choice.train_tokens, max(least, choice.train_tokens // 2)))
    if lever == "activation_share" and job.activation_share is None and job.compiled and not choice.checkpointing:
        return replace(choice, activation_share=next((s for s in SHARES if s < choice.activation_share), SHARES[-1]))
    if lever == "checkpointing" and job.checkpointing is None:
        # A layer that is computed again keeps what it makes: to recompute it in part once more would save nothing.
        share = SHARES[0] if job.activation_share is None else job.activation_share
        return replace(choice, checkpointing=True, activation_share=share)
    if lever == "keep_gathered":
        return replace(choice, keep_gathered=False)
    if lever == "defer_sync":
        return replace(choice, defer_sync=False)
    if lever == "cache_bytes":
        if job.cache_bytes is not None:
            return choice
        excess = max(
            _excess(job, phase) for phase in phases if "hidden states" in phase.parts or not choice.cache_bytes
        )
        return replace(choice, cache_bytes=max(0, choice.cache_bytes - excess))
    if lever == "offload_teacher" and job.offload_teacher is None:
        return replace(choice, offload_teacher=True)
    if lever == "offload_optimizer" and job.offload_optimizer is None:
        return replace(choice, offload_optimizer=True)
    if lever == "offload_params" and job.offload_params is None:
        return replace(choice, offload_params=True)
    return choice


def _refilled(job: Job, choice: Choice) -> Choice:
    """Return the choice with what there is still room for.

    The order is activations, sums and weights, the cache, longer micro-batches and forwards.
    """
    if job.checkpointing is None and job.activation_share is None and job.compiled and not job.student.num_experts:
        kept = (replace(choice, checkpointing=False, activation_share=share) for share in SHARES)
        choice = _first_that_fits(job, kept) or choice
    for better in (replace(choice, defer_sync=True), replace(choice, defer_sync=True, keep_gathered=True)):
        if _sums_updates(job, choice.train_tokens) and _fits(job, phases_of(job, better)):
            choice = better
    wanted = _wanted_cache(job)
    if job.device_bytes is not None and choice.cache_bytes < wanted:
        phases = phases_of(job, replace(choice, cache_bytes=0))
        room = min(job.device_bytes - phase.total for phase in phases if phase.name in _WITH_CACHE)
        choice = replace(choice, cache_bytes=max(0, min(wanted, room)))
    longer = (_trained_by(job, choice, tokens) for tokens in _halved(job.train_tokens, choice.train_tokens))
    choice = _first_that_fits(job, longer) or choice
    forwards = (replace(choice, score_tokens=tokens) for tokens in _halved(job.score_tokens, choice.score_tokens))
    return _first_that_fits(job, forwards) or choice


def _trained_by(job: Job, choice: Choice, train_tokens: int) -> Choice:
    """The choice with other micro-batches: of one an update nothing is summed."""
    several = _sums_updates(job, train_tokens)
    return replace(
        choice,
        train_tokens=train_tokens,
        defer_sync=choice.defer_sync and several,
        keep_gathered=choice.keep_gathered and several,
    )


def _halved(most: int, least: int) -> Iterator[int]:
    """From `most` on, while it is above `least`."""
    while most > least:
        yield most
        most //= 2


def _first_that_fits(job: Job, choices: Iterable[Choice]) -> Choice | None:
    return next((choice for choice in choices if _fits(job, phases_of(job, choice))), None)


_WITH_CACHE = ("teacher", "student", "optimizer step")


def _fits(job: Job, phases: Iterable[Phase]) -> bool:
    return not any(_excess(job, phase) for phase in phases)


def _excess(job: Job, phase: Phase) -> int:
    return 0 if job.device_bytes is None else max(0, phase.total - job.device_bytes)


def _knobs(job: Job, plan: Plan) -> Iterator[str]:
    """Every change that alone makes the plan fit; where none does, those that shrink a phase that does not fit."""
    tried = [(name, _relaxed(changed)) for name, changed in _changes(job, plan)]
    enough = [f"{name}: fits" for name, after in tried if after.fits]
    if enough:
        yield from enough
        return
    for name, after in tried:
        for old, new in zip(plan.phases, after.phases, strict=True):
            saved = min(_excess(job, old), old.total - new.total)
            if saved > 0:
                yield f"{name}: {saved / GIB:.1f} GiB less in the phase `{old.name}`"


def _changes(job: Job, plan: Plan) -> Iterator[tuple[str, Job]]:
    """Keys of a spec that change what is on the device, by how little they cost."""
    if job.offload_teacher is False:
        yield f"{'teachers.NAME' if job.more_teachers else 'teacher'}.offload: auto", replace(job, offload_teacher=None)
    if job.offload_optimizer is False:
        yield "actor.optimizer_offload: auto", replace(job, offload_optimizer=None)
    if job.offload_params is False:
        yield "actor.param_offload: auto", replace(job, offload_params=None)
    if job.cache_bytes is not None:
        yield "opd.cache_gib: remove it", replace(job, cache_bytes=None)
    if job.checkpointing is False:
        yield "actor.gradient_checkpointing: true", replace(job, checkpointing=True)
    yield from _server_changes(job, plan)
    one = job.row_tokens
    if job.train_tokens > one and job.least_train_tokens is None:
        name = "actor.ppo_micro_batch_size_per_gpu (with use_dynamic_bsz: ppo_max_token_len_per_gpu; of a distillation on a GPU opd.train_tokens)"
        change = f"a micro-batch of one row, {one} tokens instead of {job.train_tokens}"
        yield f"{name}: {change}", replace(job, train_tokens=one)
    one = job.teacher_row_tokens or job.row_tokens
    if job.score_tokens > one and not job.score_is_planned:
        yield f"opd.read_tokens: {one} instead of {job.score_tokens}", replace(job, score_tokens=one)
    if job.workspace_bytes > GIB // 2:
        yield "opd.workspace_gib: 0.5", replace(job, workspace_bytes=GIB // 2)
    doubled = replace(job, num_ranks=2 * job.num_ranks, rows_per_step=-(-job.rows_per_step // 2))
    yield f"trainer.gpus_per_node or nnodes: {2 * job.num_ranks} ranks instead of {job.num_ranks}", doubled


def _server_changes(job: Job, plan: Plan) -> Iterator[tuple[str, Job]]:
    """Less memory for the rollout server: the largest share, in tenths, with which its own phase fits."""
    if job.rollout_share and not job.rollout_sleeps:
        yield "rollout.free_cache_engine: true", replace(job, rollout_sleeps=True)
    if job.rollout_cache_bytes is not None:
        return  # the share is not read
    for tenths in range(9, 1, -1):
        changed = replace(job, rollout_share=tenths / 10)
        if tenths / 10 >= job.rollout_share or (tenths > 2 and _excess(changed, phases_of(changed, plan.choice)[0])):
            continue
        yield f"rollout.gpu_memory_utilization: {tenths / 10}", changed
        return
