"""PlatformCPU: verl's device interface on a machine without an accelerator (written for verl 0.9.1)."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

from opd.compat.cpu import device


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """verl on plain CPUs: gloo collectives, and Ray's *logical* GPUs as slots for workers.

    verl places a worker on a bundle with a "GPU"; `ray.init(num_gpus=N)` declares N such slots on a machine that has
    none, so that placement groups, rank order and colocation work unchanged.
    """

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> ModuleType:
        return device

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        # verl passes it on to Tensor.to(...), where the index 0 would mean an accelerator.
        return "cpu"

    def device_count(self) -> int:
        return device.device_count()

    def set_device(self, device_index: int) -> None:
        device.set_device(device_index)

    def synchronize(self, device_index: int | None = None) -> None:
        device.synchronize()

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """The CPU allocator has no settings."""

    def empty_cache(self) -> None:
        device.empty_cache()

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        """No device profiler."""

    def profiler_stop(self) -> None:
        """No device profiler."""

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None
