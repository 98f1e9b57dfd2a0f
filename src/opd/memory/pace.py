"""Estimates the seconds of a step's parts from a plan: products at a measured rate, decoding by the bytes that it reads.

The constants are measured on H200s or fitted to what was (tests/benchmarks/gpu/NOTES.md); the host's to hosts whose other GPUs trained too. What is not in it: log-probabilities of rollouts,
validations, checkpoints, conversations with tools, and collective calls, which are taken to hide behind computing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from opd.memory.job import Job
from opd.memory.phases import moments_bytes, params_bytes, teacher_sizes
from opd.memory.plan import Plan
from opd.memory.shapes import ModelShape

TEACHER_SHARE = 0.866
"""Of the rate of a large product that a teacher's forward reaches, attention counted (3.52 s for 2.03e15 operations)."""
STUDENT_SHARES = ((0.35, 0.62), (1.0, 0.695))
"""(share of the activations kept, share of that rate): 4.07 and 3.65 s for 1.69e15 operations."""
CHECKPOINTING_SHARE = 0.56
LAYER_S = 46e-6
"""Of a layer's kernels in a decoding step beyond what they read and multiply: 1.28 ms of 28 layers."""
HOST_LAYER_S = 5e-3
"""Of a compiled layer's forward and backward on the host, launches and FSDP's hooks, whatever the tokens of the micro-batch; 128 micro-batches
of two rows took 135 ms each with 28 layers. Twice as long uncompiled, half as long again with checkpointing."""
DECODE_SHARE = 0.83
"""Of that rate that the products of decoded rows reach: 6.2 us a row of a 1.7B model."""
HOST_STEP_S, HOST_ROW_S = 1.5e-3, 36e-6
"""Of vLLM's engine on the host for a decoding step and for each row in it, beside the GPU: what many rows of a small model wait for."""
STUDENT_REST_S = 0.6
"""Of a student's phase beside its micro-batches' products: 0.4 to 1.1 s where a host's other GPUs trained, -0.2 to 0.6 s elsewhere."""
SYNC_BYTES_A_SECOND = 10.8e9
"""Weights on their way to the rollout server: 3.44 GB in 0.32 s."""
HOST_BYTES_A_SECOND = 20e9
"""Between device and host, pinned; an assumption."""
REST_S = 0.5
"""Everything else: 0.3 s of a rollout's start and end, 0.2 s of the driver's own."""
STRETCH = 64
"""Decoding steps that are told as one, by their mean."""
SLOW_HOST = 1.4
"""How many times as long as told a step of a run on one GPU took in the median, at the most, on a slow host whose other GPUs were busy."""
SIGMA = 0.8
"""Of the logarithm of a response's length, where only the mean is given."""


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What a GPU does in a second: operations of a large bf16 product, bytes read of its memory."""

    operations: float
    read_bytes: float
    measured: bool = False


# By a part of the product's name, the first that matches; those of other GPUs than the H200 are its shares of their datasheets.
PRODUCT_RATES: tuple[tuple[str, Rates], ...] = (
    ("H200", Rates(operations=666e12, read_bytes=4.3e12, measured=True)),
    ("H100-NVL", Rates(operations=560e12, read_bytes=3.5e12)),
    ("H100", Rates(operations=666e12, read_bytes=3.0e12)),
    ("A100", Rates(operations=210e12, read_bytes=1.8e12)),
)


def host_bound_tokens(job: Job, *, compiled: bool) -> int:
    """Tokens of a micro-batch that a GPU such as those measured trains on while the host launches it."""
    shape = job.student
    operations = (
        STUDENT_SHARES[0][1] * PRODUCT_RATES[0][1].operations * _host_s(shape, compiled=compiled, checkpointing=False)
    )
    return math.ceil(operations / (2.0 * job.num_products * shape.backbone_params))


def _host_s(shape: ModelShape, *, compiled: bool, checkpointing: bool) -> float:
    return shape.layers * HOST_LAYER_S * (1 if compiled else 2) * (1.5 if checkpointing else 1)


def product_rates(name: str) -> Rates | None:
    """Of a GPU by its product label; None for one that is not in the table."""
    label = name.upper().replace(" ", "-")
    return next((rates for part, rates in PRODUCT_RATES if part in label), None)


def response_lengths(rows: int, *, longest: int, mean: float | None) -> list[int]:
    """Tokens of each response: all at their longest, or quantiles of the log-normal distribution of a mean, cut at the longest."""
    if mean is None:
        return [longest] * rows
    normal = NormalDist(math.log(mean) - SIGMA**2 / 2, SIGMA)
    return [min(longest, max(1, round(math.exp(normal.inv_cdf((i + 0.5) / rows))))) for i in range(rows)]


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Seconds of the parts of a step."""

    rollout: float
    teacher: float
    student: float
    weight_sync: float
    moving: float
    rest: float = REST_S

    @property
    def step(self) -> float:
        return self.rollout + self.teacher + self.student + self.weight_sync + self.moving + self.rest


def make_pace(
    plan: Plan,
    rates: Rates,
    lengths: Sequence[int],
    *,
    prompt_tokens: int,
    num_ranks: int,
    in_flight: int | None = None,
    keeps_prefixes: bool = False,
) -> Pace:
    """The pace of a plan's steps.

    Args:
        lengths: tokens of every response of a step, over all ranks.
        prompt_tokens: of each prompt.
        num_ranks: GPUs of the run; they share the rows.
        in_flight: responses that are decoded at once where unfinished ones are carried over an update; None: a step's own.
        keeps_prefixes: whether those go on without being read again.
    """
    job, rows = plan.job, [prompt_tokens + length for length in lengths]
    tokens, trained = sum(rows), sum(lengths)
    # As if every teacher had as many rows.
    teacher = sum(
        2.0 * shape.backbone_params * tokens + _attention(shape, rows) for shape, _ in job.teachers
    ) / len(job.teachers)  # fmt: skip
    widest = max(shape.hidden for shape, _ in job.teachers)
    heads = 2.0 * trained * job.student.vocab_rows * (widest + job.num_products * job.student.hidden)
    student = 2.0 * job.num_products * job.student.backbone_params * tokens + 3 * _attention(job.student, rows) + heads
    teacher_s = teacher / (TEACHER_SHARE * rates.operations * num_ranks)
    # No micro-batch has tokens of two updates: each update has at least one on every rank.
    num_updates = math.ceil(job.rows_per_step / job.mini_rows)  # of an epoch
    update_tokens = tokens * job.sequence_ranks / num_ranks / num_updates
    num_micro_batches = job.epochs * num_updates * math.ceil(update_tokens / plan.choice.train_tokens)
    host_s = num_micro_batches * _host_s(job.student, compiled=job.compiled, checkpointing=plan.choice.checkpointing)
    return Pace(
        rollout=_rollout(plan, rates, lengths, prompt_tokens, num_ranks, in_flight, keeps_prefixes),
        teacher=teacher_s,
        student=STUDENT_REST_S
        + max(host_s, job.epochs * student / (_student_share(plan) * rates.operations * num_ranks)),
        weight_sync=job.compute_bytes * job.student.num_params / job.rollout_ranks / SYNC_BYTES_A_SECOND,
        moving=_moving(plan, teacher_s),
    )


def _attention(shape: ModelShape, rows: Sequence[int]) -> float:
    """Operations of one causal forward: two products over the lower triangle of each row."""
    return 2.0 * sum(row * row for row in rows) * shape.query_width * shape.layers


def _rollout(
    plan: Plan,
    rates: Rates,
    lengths: Sequence[int],
    prompt_tokens: int,
    num_ranks: int,
    in_flight: int | None,
    keeps_prefixes: bool,
) -> float:
    """Decoding steps, each as long as the GPU or the host takes for it, whichever takes longer.

    With carried responses the decode batch is always full: as many steps as it takes for a step's tokens, and once an update
    the prompts and tokens of those on their way are read again, unless they are kept. A response on its way is a long one more often than not: their mean
    is sum(length^2) / sum(length), of which half is there.
    """
    shape, ranks = plan.job.student, plan.job.rollout_ranks
    servers, weights = max(1, num_ranks // ranks), plan.job.compute_bytes * shape.num_params
    row_s = 2.0 * shape.num_params / (DECODE_SHARE * rates.operations)
    cached_token_s = plan.job.key_value_bytes * 2 * shape.key_width * shape.layers / rates.read_bytes
    alone_s = shape.layers * LAYER_S + weights / ranks / rates.read_bytes
    rollout_s = 0.0
    for steps, num_rows, num_cached in _decoding(lengths, prompt_tokens, in_flight):
        gpu_s = alone_s + (row_s * num_rows + cached_token_s * num_cached) / (servers * ranks)
        rollout_s += steps * max(gpu_s, HOST_STEP_S + HOST_ROW_S * num_rows / servers)
    if in_flight is not None and not keeps_prefixes:
        read_again = in_flight * (prompt_tokens + sum(length**2 for length in lengths) / sum(lengths) / 2)
        rollout_s += row_s * read_again / (servers * ranks)
    return rollout_s


def _decoding(lengths: Sequence[int], prompt_tokens: int, in_flight: int | None) -> Iterator[tuple[float, int, float]]:
    """(decoding steps, rows in each, tokens that those have in the cache on average), from the start of a rollout to its end."""
    if in_flight is not None:
        tokens = sum(lengths)
        context = sum(length * (prompt_tokens + length / 2) for length in lengths) / tokens
        yield tokens / in_flight, in_flight, in_flight * context
        return
    done = 0
    for num_ended, length in enumerate(sorted(lengths)):
        num_rows = len(lengths) - num_ended
        for begin in range(done, length, STRETCH):
            end = min(begin + STRETCH, length)
            yield end - begin, num_rows, num_rows * (prompt_tokens + (begin + end) / 2)
        done = length


def _student_share(plan: Plan) -> float:
    if plan.choice.checkpointing:
        return CHECKPOINTING_SHARE
    (low, slow), (high, fast) = STUDENT_SHARES
    return slow + (fast - slow) * (max(low, plan.choice.activation_share) - low) / (high - low)


def _moving(plan: Plan, teacher_s: float) -> float:
    """Seconds in which a rank waits, at the least: teachers come while any of them reads, all else goes to the device and back."""
    job, choice = plan.job, plan.choice
    num_bytes = 2 * (choice.offload_params * params_bytes(job) + choice.offload_optimizer * moments_bytes(job))
    coming = choice.offload_teacher * sum(teacher_sizes(job)) / HOST_BYTES_A_SECOND
    return num_bytes / HOST_BYTES_A_SECOND + max(0.0, coming - teacher_s)


def render_pace(pace: Pace, rates: Rates, *, num_ranks: int, num_steps: int | None, price: float | None) -> list[str]:
    """Lines for a terminal.

    Args:
        num_steps: of the run, where its spec says so.
        price: of one GPU for an hour, in whatever currency.
    """
    parts = (
        ("rollout", pace.rollout), ("teacher", pace.teacher), ("student", pace.student), ("weights", pace.weight_sync),
        ("offloaded", pace.moving), ("rest", pace.rest),
    )  # fmt: skip
    of = "" if rates.measured else " (by the datasheet, not measured on this GPU)"
    shown = " + ".join(f"{name} {seconds:.1f}" for name, seconds in parts if seconds)
    lines = [f"a step: about {pace.step:.1f} s = {shown}{of}; on a slow or busy host up to {SLOW_HOST} times as long"]
    if num_steps is not None:
        hours = pace.step * num_steps * num_ranks / 3600
        cost = "" if price is None else f", {hours * price:,.2f} at {price:g} a GPU-hour"
        lines.append(
            f"{num_steps} steps: about {hours:.1f} GPU-hours{cost}, without start, validations and checkpoints"
        )
    elif price is not None:
        lines.append("no cost of the run: the spec does not say its number of steps; set trainer.total_steps")
    return lines
