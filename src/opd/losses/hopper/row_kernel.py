"""The CUDA row kernel from Python: launch shape, buffers, and the gradient's expected rounding error from its numbers."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from opd.head_form import FUSED_KINDS
from opd.losses.hopper.nvrtc import launch, load_kernel
from opd.losses.terms import Loss

CLUSTERS = (4, 8)  # thread blocks that share a row; 8 is the largest size every Hopper GPU can place
NUM_STATS = 6  # divergence, student entropy, teacher entropy, log p_S(token), log p_T(token), 1 if finite
NUM_GRAD_STATS = 3  # per thread block: sum g^2, max |g|, expected squared error of g
NOISE_EVERY = 16  # rows between two whose rounding is estimated: costs a sixteenth, and rows are many
MAX_VECS_A_THREAD = 10  # 16-byte vectors of the student's row in registers: 40 of 64

# Root mean square of (rounding error / value) of the stored gradient; derived in rows.cu (FP16_STEP).
BF16_RELATIVE_ROUNDING = 2.0**-7 * math.sqrt(0.375 / math.log(2) / 12)


class Logits(NamedTuple):
    """Logits of a chunk on one side, as `head_logits` stores them."""

    values: Tensor  # [n, vocab] view with padded rows; fp16 distances to `block_max`, or plain fp32
    block_max: Tensor | None  # [n, num_blocks] fp32, or None with fp32 logits


def divergence_rows(
    student: Logits,
    teacher: Logits,
    loss: Loss,
    *,
    token_ids: Tensor,
    weights: Tensor,
    stats: Tensor,
    gradient: Tensor,
    gradient_stats: Tensor,
) -> None:
    """Write statistics of each row to `stats` [n, NUM_STATS] and its gradient, on the current stream.

    A row with a nan, or with an infinity above every other logit, gets statistics of 0 and a gradient of exactly 0.

    Args:
        token_ids: [n] int64, the tokens whose log-probabilities are wanted.
        weights: [n] fp32 factor of each row's gradient.
        gradient: [n, vocab] bf16 view; may be the student's fp16 logits' own storage. Entries between two rows become 0.
        gradient_stats: [n, blocks of a row, NUM_GRAD_STATS], as `new_statistics` makes it.
    """
    num_rows, vocab = student.values.shape
    kind, beta = loss.kind, float(loss.params.get("beta", 0.0))
    macros, threads = row_kernel_macros(FUSED_KINDS.index(kind), vocab, is_fp32=student.values.dtype == torch.float32)
    smem_bytes = dict(macros)["VECS"] * threads * 16
    kernel = load_kernel("rows.cu", "divergence_rows", macros, student.values.device.index or 0, smem_bytes)
    # The kernel's inner gradient is in bits, for jsd without the student's share.
    unit = {"reverse_kl": math.log(2), "forward_kl": 1.0, "jsd": (1.0 - beta) * math.log(2)}[kind]
    arguments = (
        *(student.values, teacher.values, student.block_max, teacher.block_max),
        *(gradient, weights, token_ids, stats, gradient_stats),
        *(student.values.stride(0), gradient.stride(0), vocab),
        *(1.0 / loss.temperature, unit / loss.temperature, beta, 1.0 - beta),
    )
    launch(kernel, dict(macros)["CLUSTER"] * num_rows, threads, smem_bytes, arguments)


def row_kernel_macros(kind: int, vocab: int, *, is_fp32: bool) -> tuple[tuple[tuple[str, int], ...], int]:
    """Return (macros of rows.cu, threads a block) for logits of `vocab` entries."""
    cluster, threads, vecs = _launch_shape(vocab, 4 if is_fp32 else 8)
    macros = {
        "KIND": kind,
        "IN_F32": int(is_fp32),
        "VECS": vecs,
        "THREADS": threads,
        "CLUSTER": cluster,
        "MIN_BLOCKS": 1024 // threads,
        "NUM_GRAD_STATS": NUM_GRAD_STATS,
        "NOISE_EVERY": NOISE_EVERY,
        "NUM_STATS": NUM_STATS,
    }
    return tuple(macros.items()), threads


def new_statistics(num_rows: int, vocab: int, *, is_fp32: bool, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return room for the statistics of rows, and for the numbers of their gradients."""
    cluster, _, _ = _launch_shape(vocab, 4 if is_fp32 else 8)
    of_blocks = torch.empty(num_rows, cluster, NUM_GRAD_STATS, device=device)
    return torch.empty(num_rows, NUM_STATS, device=device), of_blocks


def _launch_shape(vocab: int, entries_a_vec: int) -> tuple[int, int, int]:
    """Return (blocks that share a row, threads a block, vectors a thread): the smallest that hold the row in registers."""
    num_vecs = -(-vocab // entries_a_vec)
    for cluster, threads in ((CLUSTERS[0], 256), *((CLUSTERS[1], threads) for threads in (256, 512, 1024))):
        vecs = -(-num_vecs // (cluster * threads))
        if vecs <= MAX_VECS_A_THREAD:
            return cluster, threads, vecs
    most = CLUSTERS[1] * 1024 * MAX_VECS_A_THREAD * entries_a_vec
    raise ValueError(f"vocabulary of {vocab} entries: the row kernel holds {most}; use the compiled backend")


def gradient_numbers(gradient_stats: Tensor, weights: Tensor) -> Tensor:
    """Return [3] on the device, of all rows so far, whose chunks start at multiples of `NOISE_EVERY`.

    Over the sampled rows: squared gradient, and its expected squared error from rounding logits and sums. Over all: the
    largest |entry|.
    """
    squared, sampled = weights[::NOISE_EVERY].square(), gradient_stats[::NOISE_EVERY].sum(1)
    numbers = ((squared * sampled[:, 0]).sum(), (squared * sampled[:, 2]).sum())
    return torch.stack([*numbers, (gradient_stats[..., 1].amax(1) * weights.abs()).amax()])


def expected_error(numbers: Tensor) -> float:
    """Return the expected ||error|| / ||gradient||, which is no bound.

    Where no sampled row has a gradient but others do, nothing is known, and the error counts as infinite.
    """
    signal, noise, largest = numbers.double().tolist()
    if not math.isfinite(signal + largest):
        raise ValueError("weights: hold nan or inf; a token that must not count has weight 0")
    if signal == 0.0:
        return math.inf if largest > 0.0 else 0.0
    return math.hypot(math.sqrt(noise / signal), BF16_RELATIVE_ROUNDING)
