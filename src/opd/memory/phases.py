"""Computes the bytes of each part in each phase of a step, for one choice of what is offloaded: pure arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from opd.memory.job import GIB, Job
from opd.memory.shapes import ModelShape

MASTER_BYTES = 4  # master weights, gradients and AdamW's two moments are fp32
# CUDA context, cuBLAS and NCCL workspaces, and what the caching allocator cannot join together.
RESERVE_BYTES = int(1.5 * GIB)
# What a sleeping vLLM keeps: its own CUDA context and its captured graphs.
ASLEEP_BYTES = int(1.5 * GIB)
# verl hands weights to the rollout server through two buckets of this size.
SYNC_BYTES = 2 * 2 * GIB


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What a plan decides.

    Attributes:
        offload_teacher: the teachers' weights wait on the host but while their own reads; their heads stay for the student's phase.
        offload_params, offload_optimizer: the student's weights (and gradients) and AdamW's moments, likewise.
        defer_sync: gradients are summed unsharded over an update's micro-batches, and reduced once.
        keep_gathered: gathered weights stay over an update's micro-batches, and are gathered once.
        cache_bytes: hidden states that stay on the device.
        checkpointing: the student's layers are recomputed in the backward.
        activation_share: what is kept of a layer's activations without checkpointing.
        score_tokens: tokens of one forward without a gradient, over all ranks that share a sequence.
        train_tokens: tokens of one micro-batch of the student, likewise.
    """

    offload_teacher: bool
    offload_params: bool
    offload_optimizer: bool
    defer_sync: bool
    keep_gathered: bool
    cache_bytes: int
    checkpointing: bool
    activation_share: float
    score_tokens: int
    train_tokens: int


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
    """Return the phases of a step, in order. Supervised fine-tuning samples nothing, and not every kind has a teacher."""
    training = (_student(job, choice), _optimizer(job, choice))
    reading = () if job.teacher is None else (_teacher(job, choice),)
    if not job.samples:
        return (*reading, *training)
    return (_rollout(job, choice), *reading, *training, _sync(job, choice))


def _phase(name: str, parts: Mapping[str, int], either: Mapping[str, int] | None = None) -> Phase:
    def present(sizes: Mapping[str, int]) -> dict[str, int]:
        return {part: size for part, size in sizes.items() if size}

    return Phase(name=name, parts=present({"reserve": RESERVE_BYTES, **parts}), either=present(either or {}))


def _resting(job: Job, choice: Choice) -> dict[str, int]:
    """What stays on the device where it is not at work."""
    return {
        "teacher weights": 0 if choice.offload_teacher else sum(teacher_sizes(job)),
        "student weights": 0 if choice.offload_params else params_bytes(job),
        "optimizer moments": 0 if choice.offload_optimizer else moments_bytes(job),
    }


def teacher_sizes(job: Job) -> list[int]:
    """Bytes of one rank's share of each teacher's weights."""
    return [_share(size * shape.num_params, job.num_ranks) for shape, size in job.teachers]


def params_bytes(job: Job) -> int:
    """The student's weights: masters of what is trained, and a frozen model beside adapters."""
    frozen = 0 if job.adapter_params is None else job.compute_bytes * job.student.num_params
    return _share(frozen, job.num_ranks) + _trained_bytes(job)


def _trained_bytes(job: Job) -> int:
    return _share(MASTER_BYTES * job.trained_params, job.num_ranks)


def moments_bytes(job: Job) -> int:
    return 2 * _trained_bytes(job)


def _server_awake(job: Job) -> int:
    if job.rollout_share and job.rollout_cache_bytes is not None:
        return _server_weights(job) + job.rollout_cache_bytes + ASLEEP_BYTES
    return int(job.rollout_share * (job.device_bytes or 0))


def _server_weights(job: Job) -> int:
    return _share(job.compute_bytes * job.student.num_params, job.rollout_ranks)


def _server_asleep(job: Job) -> int:
    if not job.rollout_share:
        return 0
    return ASLEEP_BYTES if job.rollout_sleeps else _server_awake(job)


def _rollout(job: Job, choice: Choice) -> Phase:
    return _phase("rollout", _resting(job, choice) | {"rollout server": _server_awake(job)})


def _teacher(job: Job, choice: Choice) -> Phase:
    """Forward only: two gathered layers (one computes, the next arrives) and embedding or head; of several the largest parts."""
    tokens = _share(choice.score_tokens, job.sequence_ranks)
    return _phase(
        "teacher",
        _resting(job, choice)
        | {
            "teacher weights": _reading(job, choice),
            "gathered weights": max(
                size * (2 * shape.layer_params + shape.head_params) for shape, size in job.teachers
            ),
            "activations": max(tokens * shape.transient_bytes(size) for shape, size in job.teachers),
            "hidden states": choice.cache_bytes,
            "rollout server": _server_asleep(job),
        },
    )


def _reading(job: Job, choice: Choice) -> int:
    """The teachers' weights while they read: of offloaded ones one's own, and the heads of those that have read."""
    sizes = teacher_sizes(job)
    if not choice.offload_teacher:
        return sum(sizes)
    heads = _head_sizes(job)
    # A lone rank's head is a part of the weights that stays.
    own = 0 if job.num_ranks == 1 else 1
    return max(size + sum(heads[: number + own]) for number, size in enumerate(sizes))


def _student(job: Job, choice: Choice) -> Phase:
    """Forward and backward of a micro-batch beside the sums over those before."""
    tokens = _share(choice.train_tokens, job.sequence_ranks)
    shape, width = job.student, job.compute_bytes
    frozen = job.adapter_params is not None
    saved = tokens * (shape.compiled_bytes(width) if job.compiled else shape.saved_bytes(width, frozen=frozen))
    inputs = tokens * shape.layers * width * shape.hidden
    kept = inputs if choice.checkpointing else int(shape.layers * saved * choice.activation_share)
    return _phase(
        "student",
        _resting(job, choice)
        | {
            # Kept activations come and go in sizes that the caching allocator cannot all join together.
            "reserve": RESERVE_BYTES + (0 if choice.checkpointing else kept // 16),
            "student weights": params_bytes(job),
            "optimizer moments": moments_bytes(job),
            "gradients": _gradients(job, choice),
            "gathered weights": _gathered(job, choice),
            "activations": kept,
            "teacher head": _teacher_head(job, choice),
            "hidden states": choice.cache_bytes,
            # Of several teachers the rows of a micro-batch make one each, and autograd's sum is one more.
            # A LoRA student's head is frozen.
            "head gradient": 0
            if frozen
            else (max(len(job.compared), 1) + (len(job.compared) > 1)) * MASTER_BYTES * shape.head_params,
            "rollout server": _server_asleep(job),
        },
        {
            "logits": _logits(job, choice),
            # A layer's activations made again, and the gradients of its widest tensors.
            "layer in backward": (saved if choice.checkpointing else 0) + tokens * shape.transient_bytes(width),
        },
    )


def _teacher_head(job: Job, choice: Choice) -> int:
    """Gathered for the student's phase; a lone rank's teacher that is there anyway has it whole."""
    if job.num_ranks == 1 and not choice.offload_teacher:
        return 0
    return sum(_head_sizes(job))


def _head_sizes(job: Job) -> list[int]:
    """Return the bytes of each teacher's head, which every rank has whole in the student's phase."""
    return [size * shape.head_params if job.keeps_hidden else 0 for shape, size in job.teachers]


def _gradients(job: Job, choice: Choice) -> int:
    """Sharded sums; beside them two units on their way there, or all of them where the reduction is deferred."""
    if job.one_unit:  # the sums, and the input and output of their reduction
        return job.trained_params * (2 * MASTER_BYTES + (MASTER_BYTES if choice.defer_sync else job.compute_bytes))
    units = 2 * job.student.layer_params + job.student.head_params
    if job.adapter_params is not None:
        units = -(-2 * job.adapter_params // job.student.layers)
    unsharded = MASTER_BYTES * (job.trained_params if choice.defer_sync else units)
    # A lone rank's unsharded sums become its sharded ones unit by unit: they are never there twice.
    if choice.defer_sync and job.num_ranks == 1:
        return unsharded + MASTER_BYTES * units
    return unsharded + _trained_bytes(job)


def _gathered(job: Job, choice: Choice) -> int:
    if choice.keep_gathered or job.one_unit:
        return job.compute_bytes * (job.student.num_params + (job.adapter_params or 0))
    return job.compute_bytes * (2 * job.student.layer_params + job.student.head_params)


def _logits(job: Job, choice: Choice) -> int:
    """The head's chunks, the hidden states of both sides that it reads, and the gradient it returns."""
    tokens = job.loss_tokens(choice.train_tokens)
    inputs = tokens * (2 * job.compute_bytes * job.student.hidden + job.widest_bytes)
    return inputs + max((_head_work(job, teacher) for teacher in job.compared), default=_head_work(job))


def _head_work(job: Job, *teacher: tuple[ModelShape, int]) -> int:
    """Return the bytes that the head needs for the rows of one teacher, or without one, without its inputs."""
    if job.workspace_bytes:
        return job.workspace_bytes
    # The plain form: both heads in fp32 where they are not already, and about a dozen tensors of a chunk's size.
    casts = sum(
        MASTER_BYTES * shape.head_params if width != MASTER_BYTES else 0
        for shape, width in ((job.student, job.compute_bytes), *teacher)
    )
    return casts + 12 * MASTER_BYTES * job.chunk_rows * job.student.vocab_rows


def _optimizer(job: Job, choice: Choice) -> Phase:
    return _phase(
        "optimizer step",
        _resting(job, choice)
        | {
            "student weights": params_bytes(job),
            "optimizer moments": moments_bytes(job),
            "gradients": _trained_bytes(job),
            "AdamW's temporaries": _trained_bytes(job),
            "hidden states": choice.cache_bytes,
            "teacher head": _teacher_head(job, choice),
            "rollout server": _server_asleep(job),
        },
    )


def _sync(job: Job, choice: Choice) -> Phase:
    """The server's weights are there again, its cache is not; ours go through buckets, one tensor at a time."""
    if not job.rollout_share:
        server = 0
    elif job.rollout_sleeps:
        server = ASLEEP_BYTES + _server_weights(job) + SYNC_BYTES
    else:
        server = _server_awake(job) + SYNC_BYTES
    gathered = (MASTER_BYTES + job.compute_bytes) * job.student.head_params
    return _phase("weight sync", _resting(job, choice) | {"rollout server": server, "gathered weights": gathered})


def _share(size: int, ranks: int) -> int:
    return -(-size // ranks)
