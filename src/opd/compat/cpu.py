"""The CPU profile: makes verl 0.9.1 run on a machine without an accelerator.

`VERL_USE_EXTERNAL_MODULES=opd.compat.cpu` has verl import this module at the end of `import verl`, in every process of a run.
It sets the platform, changes a function of torch and registers the rollout named "cpu", which is imported when first used.
Each change has a test in tests/compat/test_cpu.py that fails as soon as the unchanged code works.
"""

import functools
import importlib
import os
import resource
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import psutil
import torch
import torch.distributed
from verl.plugin.platform import PlatformRegistry, set_platform
from verl.plugin.platform.platform_cuda import PlatformCUDA

ROLLOUT_NAME = "cpu"


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing: a CPU has one device, no cache of its allocator, no handles and no settings."""


def _resident(_: Any = None) -> int:
    return int(psutil.Process(os.getpid()).memory_info().rss)


def _peak(_: Any = None) -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # KiB on Linux


device = SimpleNamespace(
    **{
        name: getattr(torch.cpu, name)
        for name in ("Stream", "current_stream", "device_count", "is_available", "stream", "synchronize")
    },
    current_device=lambda: 0,  # other namespaces have an integer, torch.cpu the string "cpu"
    get_device_name=lambda device=None: "CPU",
    get_rng_state=lambda device=None: torch.get_rng_state(),
    set_rng_state=lambda state, device=None: torch.set_rng_state(state),
    manual_seed=torch.manual_seed,
    manual_seed_all=torch.manual_seed,
    memory_allocated=_resident,
    memory_reserved=_resident,
    max_memory_allocated=_peak,
    max_memory_reserved=_peak,
    mem_get_info=lambda _=None: (psutil.virtual_memory().available, psutil.virtual_memory().total),
    **dict.fromkeys(
        ("empty_cache", "ipc_collect", "reset_peak_memory_stats", "set_device", "set_per_process_memory_fraction"),
        _nothing,
    ),
)
"""The part of a `torch.<device>` namespace that verl calls (`get_torch_device()`), for the CPU."""


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformCUDA):
    """verl on plain CPUs: gloo collectives, and Ray's *logical* GPUs as slots for workers.

    verl places a worker on a bundle with a "GPU". `ray.init(num_gpus=N)` declares N such slots on a machine that has
    none, so that placement groups, rank order and colocation work unchanged. Names in Ray are CUDA's.
    """

    device_name = vendor_name = "cpu"
    device_module = device
    set_device = set_allocator_settings = empty_cache = synchronize = profiler_start = profiler_stop = cudart = _nothing
    is_available = staticmethod(torch.cpu.is_available)
    device_count = staticmethod(torch.cpu.device_count)
    manual_seed = manual_seed_all = staticmethod(torch.manual_seed)
    nvtx_range = staticmethod(nullcontext)
    # verl passes it on to Tensor.to(...), where the index 0 would mean an accelerator.
    current_device = staticmethod(lambda: "cpu")
    communication_backend_name = staticmethod(lambda: "gloo")
    get_device_capability = staticmethod(lambda device_index=0: (None, None))
    is_ipc_supported = staticmethod(lambda: False)


def accept_one_backend_named_twice() -> None:
    """Let `init_process_group("cpu:gloo,cpu:gloo")` mean "cpu:gloo".

    verl 0.9.1 (`initialize_global_process_group_ray`) writes "cpu:gloo,<device>:<backend>"; with the CPU as the device that
    names it twice, which torch 2.11 refuses.
    """
    original = torch.distributed.init_process_group

    @functools.wraps(original)
    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        if isinstance(backend, str):
            backend = ",".join(dict.fromkeys(backend.split(",")))
        original(backend, *args, **kwargs)

    torch.distributed.init_process_group = init_process_group


def _register_rollout() -> None:
    from verl.workers.rollout import base
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    RolloutReplicaRegistry.register(
        ROLLOUT_NAME, lambda: importlib.import_module("opd.rollout.cpu.replica").CPURolloutReplica
    )
    base._ROLLOUT_REGISTRY[(ROLLOUT_NAME, "async")] = "opd.rollout.cpu.replica.CPUServerAdapter"


set_platform(PlatformCPU())
accept_one_backend_named_twice()
# verl registers its FSDP engines for cuda and npu only; they run on any torch device, and this is verl's own switch.
os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")
_register_rollout()
