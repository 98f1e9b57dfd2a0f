"""What tests of this folder need of the machine: said where a module is read, as a skip of its tests."""

import pytest
import torch


def hopper() -> None:
    """The fused divergence's device."""
    __tracebackhide__ = True  # the skip is told at the module that asks
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
