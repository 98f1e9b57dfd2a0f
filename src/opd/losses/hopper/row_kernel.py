"""The CUDA row kernel from Python: launch shape, buffers, and what its numbers say about rounding."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from opd.losses.hopper.nvrtc import launch, load_kernel

KINDS = ("reverse_kl", "forward_kl", "jsd")  # their places are their numbers in rows.cu
CLUSTERS = (4, 8)  # thread blocks that share a row; 8 is the largest size every Hopper GPU can place
NUM_STATS = 6  # divergence, student entropy, teacher entropy, log p_S(token), log p_T(token), 1 if finite
NUM_GRAD_STATS = 3  # per thread block: sum g^2, max |g|, expected squared error of g
NOISE_EVERY = 16  # rows between two whose rounding is estimated: costs a sixteenth, and rows are many
MAX_VECS_A_THREAD = 10  # 16-byte vectors of the student's row in registers: 40 of 64

# Root mean square of (rounding error / value) of the stored gradient; derived in rows.cu (FP16_STEP).
FP16_RELATIVE_ROUNDING = 2.0**-10 * math.sqrt(0.375 / math.log(2) / 12)
BF16_RELATIVE_ROUNDING = 8 * FP16_RELATIVE_ROUNDING
# Below its normal range fp16 has steps of 2^-24, uniform error in a step.
FP16_SMALLEST_ROUNDING = 2.0**-24 / math.sqrt(12)


class Logits(NamedTuple):
    """Logits of a chunk on one side, as `head_logits` stores them."""

    values: Tensor
    """[n, vocab] view with padded rows; fp16 distances to `block_max`, or plain fp32."""
    block_max: Tensor | None
    """[n, num_blocks] fp32, or None with fp32 logits."""


class GradientRows(NamedTuple):
    """Where the gradient of a chunk goes, and how it is scaled."""

    values: Tensor
    """[n, vocab] view, bf16 or fp16; may be the student's fp16 logits' own storage. What lies between two rows becomes 0."""
    weight: Tensor
    """[n] fp32 factor of each row."""
    scale: float
    """Factor of all rows, a power of two that keeps fp16 away from its smallest numbers."""
    stats: Tensor
    """[n, blocks of a row, NUM_GRAD_STATS] fp32 output, as `new_gradient_stats` makes it."""


def gradient_unit(kind: str, beta: float, temperature: float) -> float:
    """What the kernel's inner gradient is multiplied by: bits to nats, jsd's share of the student, the temperature."""
    unit = {"reverse_kl": math.log(2), "forward_kl": 1.0, "jsd": (1.0 - beta) * math.log(2)}[kind]
    return unit / temperature


def divergence_rows(
    student: Logits,
    teacher: Logits,
    kind: str,
    *,
    beta: float,
    temperature: float,
    token_ids: Tensor | None = None,
    stats: Tensor | None = None,
    gradient: GradientRows | None = None,
) -> None:
    """Statistics of each row into `stats` [n, NUM_STATS], and the gradient if asked for, on the current stream.

    A row with a nan, or with an infinity above every other logit, gets statistics of 0 and a gradient of exactly 0.

    Args:
        token_ids: [n] int64, the token whose log-probabilities are wanted; None: none is.
    """
    num_rows, vocab = student.values.shape
    is_fp32 = student.values.dtype == torch.float32
    dtype = None if gradient is None else str(gradient.values.dtype).removeprefix("torch.")
    macros, threads = row_kernel_macros(KINDS.index(kind), vocab, is_fp32=is_fp32, gradient=dtype)
    smem_bytes = dict(macros)["VECS"] * threads * 16
    device = student.values.device
    kernel = load_kernel("rows.cu", "divergence_rows", macros, device.index or 0, smem_bytes)
    scale = 0.0 if gradient is None else gradient.scale * gradient_unit(kind, beta, temperature)
    arguments = (
        *(student.values, teacher.values, student.block_max, teacher.block_max),
        *((None, None) if gradient is None else (gradient.values, gradient.weight)),
        *(token_ids, stats, None if gradient is None else gradient.stats),
        *(student.values.stride(0), 0 if gradient is None else gradient.values.stride(0), vocab),
        *(1.0 / temperature, scale, beta, 1.0 - beta),
    )
    launch(kernel, (dict(macros)["CLUSTER"] * num_rows, 1, 1), threads, smem_bytes, arguments)


def row_kernel_macros(
    kind: int,
    vocab: int,
    *,
    is_fp32: bool,
    gradient: str | None,
) -> tuple[tuple[tuple[str, int], ...], int]:
    """(macros of rows.cu, threads a block) for logits of `vocab` entries; `gradient` is its dtype's name, or None."""
    cluster, threads, vecs = _launch_shape(vocab, 4 if is_fp32 else 8)
    macros = {
        "KIND": kind,
        "GRAD": int(gradient is not None),
        "IN_F32": int(is_fp32),
        "OUT_BF16": int(gradient == "bfloat16"),
        "VECS": vecs,
        "THREADS": threads,
        "CLUSTER": cluster,
        "MIN_BLOCKS": 1024 // threads,
        "NUM_GRAD_STATS": NUM_GRAD_STATS,
        "NOISE_EVERY": NOISE_EVERY,
        "NUM_STATS": NUM_STATS,
    }
    return tuple(macros.items()), threads


def new_gradient_stats(num_rows: int, vocab: int, *, is_fp32: bool, device: torch.device) -> Tensor:
    """Room for the numbers that the row kernel leaves of each row's gradient."""
    cluster, _, _ = _launch_shape(vocab, 4 if is_fp32 else 8)
    return torch.empty(num_rows, cluster, NUM_GRAD_STATS, device=device)


def _launch_shape(vocab: int, entries_a_vec: int) -> tuple[int, int, int]:
    """(blocks that share a row, threads a block, vectors a thread): the smallest that hold the row in registers."""
    num_vecs = -(-vocab // entries_a_vec)
    for cluster, threads in ((CLUSTERS[0], 256), *((CLUSTERS[1], threads) for threads in (256, 512, 1024))):
        vecs = -(-num_vecs // (cluster * threads))
        if vecs <= MAX_VECS_A_THREAD:
            return cluster, threads, vecs
    raise ValueError(
        f"vocabulary of {vocab} entries: the row kernel holds at most {CLUSTERS[1] * 1024 * MAX_VECS_A_THREAD * entries_a_vec}; "
        "use the chunked backend"
    )


class GradientReport(NamedTuple):
    """What the gradient's own numbers say about how it was stored."""

    expected_error: float
    """Expected ||error|| / ||gradient||, all causes; no bound."""
    range_error: float
    """The part of it that comes from entries below fp16's normal range, which a larger scale would cure."""
    peak: float
    """Largest |entry| of the gradient as stored, had the format no limit."""
    num_nonfinite: int
    """Rows reported as not finite."""


def gradient_report(numbers: Tensor, dtype: torch.dtype) -> GradientReport:
    """Sum up `gradient_numbers` of several chunks [chunks, 5], on the host; `dtype` is the stored gradient's.

    Where no sampled row has a gradient but others do, nothing is known, and the error counts as infinite.
    """
    signal, noise, smallest, _, num_nonfinite = numbers.double().sum(0).tolist()
    peak = float(numbers[:, 3].max())
    rounding = BF16_RELATIVE_ROUNDING if dtype == torch.bfloat16 else FP16_RELATIVE_ROUNDING
    if signal == 0.0:
        return GradientReport(math.inf if peak > 0.0 else 0.0, 0.0, peak, int(num_nonfinite))
    range_error = math.sqrt(smallest / signal)
    return GradientReport(
        math.hypot(math.sqrt(noise / signal), range_error, rounding), range_error, peak, int(num_nonfinite)
    )
