"""Needs of this folder's tests: a module that lacks one is skipped as it is read."""

import pytest
import torch


def hopper() -> None:
    """The fused divergence's device."""
    __tracebackhide__ = True  # pytest shows the skip at the module that asks
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0):
        _skip("the fused divergence needs a CUDA device of compute capability 9.0 (Hopper)")


def devices(count: int, why: str) -> None:
    """So many CUDA devices, of any kind.

    Args:
        why: a sentence that says so, for people.
    """
    __tracebackhide__ = True
    if torch.cuda.device_count() < count:
        _skip(why)


def _skip(why: str) -> None:
    __tracebackhide__ = True
    pytest.skip(f"NOT TESTED HERE: {why}", allow_module_level=True)
