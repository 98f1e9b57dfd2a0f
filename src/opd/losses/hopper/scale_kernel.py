"""A tensor times a number that only the device knows, in place."""

import torch
from torch import Tensor

from opd.losses.hopper.driver import num_multiprocessors
from opd.losses.hopper.nvrtc import launch, load_kernel

THREADS = 256
_BLOCKS_A_MULTIPROCESSOR = 8  # as many as run at once: one that finds nothing to do costs time too


def scale_macros(dtype: torch.dtype) -> tuple[tuple[str, int], ...]:
    """Macros of scale.cu."""
    return (("THREADS", THREADS), ("BITS", 8 * dtype.itemsize), ("OUT_BF16", int(dtype == torch.bfloat16)))


def scale_in_place(values: Tensor, factor: Tensor) -> None:
    """values *= factor (a scalar on the device, float32), without touching memory where the factor is 1 and without a sync.

    Args:
        values: contiguous, float32, bfloat16 or float16.
    """
    if not values.numel():
        return
    device = values.device.index or 0
    kernel = load_kernel("scale.cu", "scale_in_place", scale_macros(values.dtype), device, 0)
    blocks = min(-(-values.numel() // THREADS), _BLOCKS_A_MULTIPROCESSOR * num_multiprocessors(device))
    launch(kernel, (blocks, 1, 1), THREADS, 0, (values, factor, values.numel()))
