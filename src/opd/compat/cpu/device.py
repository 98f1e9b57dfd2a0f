"""The part of a `torch.<device>` namespace that verl calls, for the CPU: memory of this process, random state, no-op streams.

verl reads it as `get_torch_device()`; what torch already offers in `torch.cpu` is re-exported, not rewritten.
"""

import os
import platform
import resource
from typing import Any

import psutil
import torch
from torch.cpu import Stream, current_stream, device_count, is_available, stream, synchronize

__all__ = [
    "Stream",
    "current_device",
    "current_stream",
    "device_count",
    "empty_cache",
    "get_device_name",
    "get_rng_state",
    "ipc_collect",
    "is_available",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "reset_peak_memory_stats",
    "set_device",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "stream",
    "synchronize",
]


def current_device() -> int:
    """The index of the only CPU device (torch.cpu answers the string "cpu", other namespaces an integer)."""
    return 0


def set_device(device: Any) -> None:
    """Nothing to select: there is one CPU device."""


def get_device_name(device: Any = None) -> str:
    """The machine's processor architecture, e.g. "x86_64"."""
    return platform.machine()


def memory_allocated(device: Any = None) -> int:
    """Resident bytes of this process."""
    num_bytes: int = psutil.Process(os.getpid()).memory_info().rss
    return num_bytes


def max_memory_allocated(device: Any = None) -> int:
    """Peak resident bytes of this process since it started (Linux reports ru_maxrss in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


memory_reserved = memory_allocated
max_memory_reserved = max_memory_allocated


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(available, total) bytes of the machine."""
    memory = psutil.virtual_memory()
    return memory.available, memory.total


def get_rng_state(device: Any = None) -> torch.Tensor:
    """State of torch's CPU generator."""
    return torch.get_rng_state()


def set_rng_state(state: torch.Tensor, device: Any = None) -> None:
    """Restore torch's CPU generator."""
    torch.set_rng_state(state)


def manual_seed(seed: int) -> None:
    """Seed torch's CPU generator."""
    torch.manual_seed(seed)


manual_seed_all = manual_seed


def empty_cache() -> None:
    """The CPU allocator keeps no cache that could be emptied."""


def ipc_collect() -> None:
    """No device IPC handles exist on a CPU."""


def reset_peak_memory_stats(device: Any = None) -> None:
    """The kernel's peak RSS cannot be reset from inside the process."""


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Memory of a CPU process is limited by its cgroup, not by torch."""
