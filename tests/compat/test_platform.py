import subprocess
import sys

import pytest
import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

from opd.compat.cpu import device
from opd.compat.cpu.platform import PlatformCPU


def test_the_platform_fills_verls_whole_interface():
    platform = PlatformCPU()
    assert isinstance(platform, PlatformBase)
    assert platform.is_available()
    assert PlatformRegistry.get("cpu") is PlatformCPU


def test_tensors_move_to_its_current_device():
    assert torch.zeros(1).to(PlatformCPU().current_device()).device == torch.device("cpu")


def test_workers_take_logical_gpus_of_ray():
    assert PlatformCPU().ray_resource_options(1) == {"num_gpus": 1}


def test_memory_figures_are_of_this_process_and_machine():
    allocated, peak = device.memory_allocated(), device.max_memory_allocated()
    available, total = device.mem_get_info()
    assert 0 < allocated < total
    assert 0 < available < total
    held = torch.ones(32 << 20)  # 128 MiB
    assert device.memory_allocated() - allocated > 100 << 20
    assert device.max_memory_allocated() >= max(peak, held.nbytes)


def test_the_random_state_is_torchs():
    state = device.get_rng_state()
    first = torch.rand(3)
    device.set_rng_state(state)
    assert torch.equal(torch.rand(3), first)


@pytest.mark.slow
def test_naming_the_package_to_verl_sets_everything_up_and_loads_the_rollout_only_when_asked(monkeypatch):
    """In a fresh process, as verl's workers import it."""
    code = """
import os, sys, verl
from verl.plugin.platform import get_platform
from verl.workers.rollout.base import get_rollout_class
from verl.workers.rollout.replica import RolloutReplicaRegistry
print(get_platform().device_name, os.environ["VERL_ENGINE_DEVICE"])
print(sorted(name for name in sys.modules if name.startswith("opd.")))
print(RolloutReplicaRegistry.get("cpu").__name__, get_rollout_class("cpu").__name__)
"""
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "opd.compat.cpu")
    monkeypatch.delenv("VERL_ENGINE_DEVICE", raising=False)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=200)
    assert result.stdout.splitlines()[-3:] == [
        "cpu cuda",
        "['opd.compat', 'opd.compat.cpu', 'opd.compat.cpu.device', 'opd.compat.cpu.patches', 'opd.compat.cpu.platform']",
        "CPURolloutReplica CPUServerAdapter",
    ]
