"""What verl 0.9.1 and torch 2.11 cannot do on a CPU without a change: one named function each.

Each has a test in tests/compat/test_patches.py that fails as soon as the unpatched code works.
"""

import functools
from dataclasses import dataclass
from typing import Any

import torch.distributed
import torch.distributed.fsdp


def accept_one_backend_named_twice() -> None:
    """Let `init_process_group("cpu:gloo,cpu:gloo")` mean "cpu:gloo".

    verl 0.9.1 (verl/utils/distributed.py, `initialize_global_process_group_ray`) always writes
    "cpu:gloo,<device>:<backend>"; with the CPU as the device that names it twice, which torch 2.11 refuses
    ("Duplicate device type cpu in backend string"). Idempotent.
    """
    original = torch.distributed.init_process_group
    if getattr(original, "drops_repeated_backends", False):
        return

    @functools.wraps(original)
    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        if isinstance(backend, str):
            backend = ",".join(dict.fromkeys(backend.split(",")))
        original(backend, *args, **kwargs)

    init_process_group.drops_repeated_backends = True  # type: ignore[attr-defined]
    torch.distributed.init_process_group = init_process_group


def offload_without_pinned_memory() -> None:
    """Make FSDP2's `CPUOffloadPolicy()` ignore `pin_memory`, which needs an accelerator.

    verl 0.9.1 (verl/workers/engine/fsdp/transformer_impl.py, `_build_fsdp_module`) hard-codes
    `CPUOffloadPolicy(pin_memory=True)` for every forward-only engine, GRPO's reference policy among them; torch 2.11
    then calls `Tensor.pin_memory()`, which raises without an accelerator. Idempotent.
    """
    original = torch.distributed.fsdp.CPUOffloadPolicy
    if getattr(original, "never_pins", False):
        return

    @dataclass
    class CPUOffloadPolicy(original):  # type: ignore[valid-type,misc]
        never_pins = True

        def __post_init__(self) -> None:
            self.pin_memory = False

    torch.distributed.fsdp.CPUOffloadPolicy = CPUOffloadPolicy  # type: ignore[misc]


def apply_all() -> None:
    """Apply every patch of this module in this process."""
    accept_one_backend_named_twice()
    offload_without_pinned_memory()
