"""The CPU profile works, and each of its changes is still needed: that kind of test fails when verl or torch no longer needs it."""

import inspect
import subprocess
import sys

import pytest
import torch
import torch.distributed
from verl.utils import distributed as verl_distributed


def in_fresh_process(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)


GROUP = """
import torch.distributed
import opd.compat.cpu
torch.distributed.init_process_group("cpu:gloo,cpu:gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
print(torch.distributed.get_backend())
"""


@pytest.mark.slow
def test_with_the_profile_a_backend_may_be_named_twice():
    result = in_fresh_process(GROUP)
    assert result.stdout.strip().endswith("gloo"), result.stderr


def test_torch_still_refuses_a_backend_named_twice():
    with pytest.raises(ValueError, match="Duplicate device type cpu"):
        torch.distributed.distributed_c10d.BackendConfig("cpu:gloo,cpu:gloo")


def test_verl_still_names_the_cpu_backend_twice_on_a_cpu():
    source = inspect.getsource(verl_distributed.initialize_global_process_group_ray)
    assert 'f"cpu:gloo,{get_device_name()}:{get_nccl_backend()}"' in source


@pytest.mark.slow
def test_naming_the_module_to_verl_sets_everything_up_and_loads_the_rollout_only_when_asked(monkeypatch):
    """In a fresh process, as verl's workers import it."""
    code = """
import os, sys, torch, verl
from verl.plugin.platform import PlatformBase, get_platform
from verl.workers.rollout.base import get_rollout_class
from verl.workers.rollout.replica import RolloutReplicaRegistry
platform = get_platform()
print(sorted(name for name in sys.modules if name.startswith("opd.")))
print(platform.device_name, os.environ["VERL_ENGINE_DEVICE"], torch.zeros(1).to(platform.current_device()).device)
print(isinstance(platform, PlatformBase), platform.ray_resource_options(1))
device = platform.device_module
state, before = device.get_rng_state(), device.memory_allocated()
first, held = torch.rand(3), torch.ones(32 << 20)  # 128 MiB
device.set_rng_state(state)
print(torch.equal(torch.rand(3), first), device.memory_allocated() - before > 100 << 20)
print(0 < before < device.mem_get_info()[1], device.max_memory_allocated() > before)
print(RolloutReplicaRegistry.get("cpu").__name__, get_rollout_class("cpu").__name__)
"""
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "opd.compat.cpu")
    monkeypatch.delenv("VERL_ENGINE_DEVICE", raising=False)
    result = in_fresh_process(code)
    assert result.stdout.splitlines()[-6:] == [
        "['opd.compat', 'opd.compat.cpu']",
        "cpu cuda cpu",
        "True {'num_gpus': 1}",
        "True True",
        "True True",
        "CPURolloutReplica CPUServerAdapter",
    ], result.stderr
