"""Bytes of each part in each phase of a step, for one choice of what is offloaded: pure arithmetic."""

from collections.abc import Mapping
from dataclasses import dataclass

from opd.memory.job import GIB, Job

MASTER_BYTES = 4  # master weights, gradients and AdamW's two moments are fp32
# CUDA context, cuBLAS and NCCL workspaces, and free pieces that the caching allocator cannot join.
RESERVE_BYTES = int(1.5 * GIB)
# A sleeping vLLM's own CUDA context and captured graphs.
ASLEEP_BYTES = int(1.5 * GIB)
# verl sends weights to the rollout server through two buckets of this size.
SYNC_BYTES = 2 * 2 * GIB


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Decisions of a plan; what is offloaded waits on the host except in its own phase."""

    offload_teacher: bool  # all but the one that reads; their heads stay for the student
    offload_params: bool  # and gradients
    offload_optimizer: bool
    defer_sync: bool = False  # gradients are summed unsharded over an update's micro-batches, and reduced once
    keep_gathered: bool = False  # gathered weights stay over an update's micro-batches, and are gathered once
    cache_bytes: int = 0  # of hidden states that stay on the device
    checkpointing: bool  # the student's layers are recomputed in the backward
    activation_share: float  # kept of a layer's activations without checkpointing
    score_tokens: int  # of one forward without a gradient, over all ranks that share a sequence
    train_tokens: int  # of one micro-batch of the student, likewise


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Bytes on the device in one phase, part by part; of `either` only the larger is there at a time."""

    name: str
    parts: Mapping[str, int]
    either: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values()) + max(self.either.values(), default=0)


def phases_of(job: Job, choice: Choice) -> tuple[Phase, ...]:
    """Return the phases of a step, in order, with the parts that are there."""
    phases = [_teacher(job, choice)] if job.teachers else []
    temporary = dict.fromkeys(("gradients", "AdamW's temporaries"), _trained_bytes(job))
    phases += [_student(job, choice), _phase(job, choice, "optimizer step", _updating(job, choice) | temporary)]
    if job.rollout_share is not None:
        rollout = _phase(job, choice, "rollout", {"rollout server": _server_awake(job)})
        phases = [rollout, *phases, _sync(job, choice)]
    return tuple(phases)


def _phase(
    job: Job, choice: Choice, name: str, parts: Mapping[str, int], either: Mapping[str, int] | None = None
) -> Phase:
    resting = {
        "reserve": RESERVE_BYTES,
        "teacher weights": 0 if choice.offload_teacher else sum(_teacher_sizes(job)),
        "student weights": 0 if choice.offload_params else _params_bytes(job),
        "optimizer moments": 0 if choice.offload_optimizer else 2 * _trained_bytes(job),
        "rollout server": _server_asleep(job),
    }
    there = {part: size for part, size in (resting | dict(parts)).items() if size}
    return Phase(name=name, parts=there, either=either or {})


def _teacher_sizes(job: Job) -> list[int]:
    """Return the bytes of one rank's share of each teacher's weights."""
    return [job.shared(size * shape.num_params) for shape, size in job.teachers]


def _head_sizes(job: Job) -> list[int]:
    """Return the bytes of each teacher's head, which every rank has whole in the student's phase."""
    return [size * shape.head_params if job.keeps_hidden else 0 for shape, size in job.teachers]


def _params_bytes(job: Job) -> int:
    """Return the bytes of the student's weights: masters of those that are trained, and the frozen model of a LoRA student."""
    frozen = 0 if job.adapter_params is None else job.compute_bytes * job.student.num_params
    return job.shared(frozen) + _trained_bytes(job)


def _trained_bytes(job: Job) -> int:
    return job.shared(MASTER_BYTES * job.trained_params)


def _server_awake(job: Job) -> int:
    return int((job.rollout_share or 0.0) * (job.device_bytes or 0))


def _server_asleep(job: Job) -> int:
    if not job.rollout_share:
        return 0
    return ASLEEP_BYTES if job.rollout_sleeps else _server_awake(job)


def _teacher(job: Job, choice: Choice) -> Phase:
    """Return the forward's phase: two gathered layers (one computes, the next arrives) and embedding or head; of several the largest parts."""
    tokens = -(-choice.score_tokens // job.sequence_ranks)
    parts = {
        "teacher weights": _reading(job, choice),
        "gathered weights": max(size * (2 * shape.layer_params + shape.head_params) for shape, size in job.teachers),
        "activations": max(tokens * shape.transient_bytes(size) for shape, size in job.teachers),
        "hidden states": choice.cache_bytes,
    }
    return _phase(job, choice, "teacher", parts)


def _reading(job: Job, choice: Choice) -> int:
    """Return the bytes of the teachers' weights while they read: of offloaded teachers one, and the heads of those that have read."""
    sizes, heads = _teacher_sizes(job), _head_sizes(job)
    if not choice.offload_teacher:
        return sum(sizes)
    own = 0 if job.num_ranks == 1 else 1  # a lone rank's head is a part of the weights
    return max(size + sum(heads[: number + own]) for number, size in enumerate(sizes))


def _student(job: Job, choice: Choice) -> Phase:
    """Return the phase of forward and backward of a micro-batch, with the sums over those before."""
    tokens = -(-choice.train_tokens // job.sequence_ranks)
    shape, width = job.student, job.compute_bytes
    frozen = job.adapter_params is not None
    saved = tokens * (shape.compiled_bytes(width) if job.compiled else shape.saved_bytes(width, frozen=frozen))
    inputs = tokens * shape.layers * width * shape.hidden
    kept = inputs if choice.checkpointing else int(shape.layers * saved * choice.activation_share)
    units = 2 * shape.layer_params + shape.head_params
    gathered = shape.num_params + (job.adapter_params or 0) if choice.keep_gathered else units
    # The rows of several teachers in a micro-batch make a gradient each, and autograd's sum is one more.
    num_gradients = 0 if frozen else max(len(job.compared), 1) + (len(job.compared) > 1)
    parts = {
        # Kept activations come and go in sizes that the caching allocator cannot all join.
        "reserve": RESERVE_BYTES + (0 if choice.checkpointing else kept // 16),
        "gradients": _gradients(job, choice),
        "gathered weights": width * gathered,
        "activations": kept,
        **_updating(job, choice),
        "head gradient": num_gradients * MASTER_BYTES * shape.head_params,
    }
    # A layer's activations made again, and the gradients of its widest tensors.
    backward = (saved if choice.checkpointing else 0) + tokens * shape.transient_bytes(width)
    return _phase(job, choice, "student", parts, {"logits": _logits(job, choice), "layer in backward": backward})


def _updating(job: Job, choice: Choice) -> dict[str, int]:
    """Return what is there in the student's phase and in the optimizer's. A lone rank's resting teacher has its head whole."""
    is_whole = job.num_ranks == 1 and not choice.offload_teacher
    return {
        "student weights": _params_bytes(job),
        "optimizer moments": 2 * _trained_bytes(job),
        "teacher head": 0 if is_whole else sum(_head_sizes(job)),
        "hidden states": choice.cache_bytes,
    }


def _gradients(job: Job, choice: Choice) -> int:
    """Return the bytes of the sharded sums, and two units on their way there, or all where the reduction is deferred."""
    units = 2 * job.student.layer_params + job.student.head_params
    if job.adapter_params is not None:
        units = -(-2 * job.adapter_params // job.student.layers)
    unsharded = MASTER_BYTES * (job.trained_params if choice.defer_sync else units)
    # A lone rank's unsharded sums become its sharded sums unit by unit: they are never there twice.
    if choice.defer_sync and job.num_ranks == 1:
        return unsharded + MASTER_BYTES * units
    return unsharded + _trained_bytes(job)


def _logits(job: Job, choice: Choice) -> int:
    """Return the bytes of the head's chunks, the hidden states of both sides that it reads, and the gradient it returns."""
    tokens = -(-choice.train_tokens * job.response_tokens // (job.row_tokens * job.sequence_ranks))
    return job.workspace_bytes + tokens * (2 * job.compute_bytes * job.student.hidden + job.widest_bytes)


def _sync(job: Job, choice: Choice) -> Phase:
    """Return the phase in which the server has its weights again, not its cache; ours go through buckets, one tensor at a time."""
    server = _server_asleep(job)
    if server:
        weights = -(-job.compute_bytes * job.student.num_params // job.rollout_ranks)
        server += SYNC_BYTES + (weights if job.rollout_sleeps else 0)
    gathered = (MASTER_BYTES + job.compute_bytes) * job.student.head_params
    return _phase(job, choice, "weight sync", {"rollout server": server, "gathered weights": gathered})
