"""What tests of this folder need of the machine: said where a module is read, as a skip of its tests."""

import pytest
import torch


def hopper() -> None:
    """The fused divergence's device."""
    __tracebackhide__ = True  # the skip is told at the module that asks
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0):
        pytest.skip(
            "NOT TESTED HERE: the fused divergence needs a CUDA device of compute capability 9.0 (Hopper)",
            allow_module_level=True,
        )
