"""A call's small numbers in one launch each: weights as fractions of the largest, and what the gradient says of its rounding."""

import math

import torch
from torch import Tensor

from opd.losses.hopper.nvrtc import launch, load_kernel
from opd.losses.hopper.row_kernel import (
    FP16_SMALLEST_ROUNDING,
    NOISE_EVERY,
    NUM_GRAD_STATS,
    NUM_STATS,
    GradientRows,
    gradient_unit,
)

THREADS = 1024


def numbers_macros(blocks_a_row: int) -> tuple[tuple[str, int], ...]:
    """Macros of numbers.cu; `blocks_a_row`: of the gradient's statistics."""
    return (
        ("THREADS", THREADS),
        ("BLOCKS_A_ROW", blocks_a_row),
        ("NUM_STATS", NUM_STATS),
        ("NUM_GRAD_STATS", NUM_GRAD_STATS),
        ("NOISE_EVERY", NOISE_EVERY),
    )


def scale_weights(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weights as fractions of a power of two near the largest, so that fp16 gradients keep their range; the host waits for nothing.

    Args:
        weights: [T] float32.

    Returns:
        [T] float32, exact; and [2]: the power of two that they are fractions of, 1 if all weights are finite.
    """
    weights = weights.contiguous()
    scaled, numbers = torch.empty_like(weights), torch.empty(2, device=weights.device)
    kernel = load_kernel("numbers.cu", "scale_weights", numbers_macros(1), weights.device.index or 0, 0)
    launch(kernel, (1, 1, 1), THREADS, 0, (weights, scaled, numbers, len(weights)))
    return scaled, numbers


def gradient_numbers(gradient: GradientRows, stats: Tensor, kind: str, *, beta: float, temperature: float) -> Tensor:
    """[5] on the device, of one chunk; `stats` [n, NUM_STATS].

    Over the sampled rows: squared gradient, its expected squared error from rounding logits and sums, and at most that of
    entries below fp16's normal range. Over all: the largest |stored entry|, the number of rows that are not finite.
    """
    stored_unit = gradient.scale * gradient_unit(kind, beta, temperature)
    of_a_row = 0.0
    if gradient.values.dtype == torch.float16:
        of_a_row = gradient.values.shape[1] * math.pow(FP16_SMALLEST_ROUNDING / stored_unit, 2)
    numbers = torch.empty(5, device=stats.device)
    macros = numbers_macros(gradient.stats.shape[1])
    kernel = load_kernel("numbers.cu", "gradient_numbers", macros, stats.device.index or 0, 0)
    weight, num_rows = gradient.weight, len(stats)
    launch(kernel, (1, 1, 1), THREADS, 0, (weight, gradient.stats, stats, numbers, num_rows, stored_unit, of_a_row))
    return numbers
